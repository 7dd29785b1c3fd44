// Command null is a scheduler extender that decodes nothing and refuses nothing: what is left is the cost of asking any
// extender at all. It finds its answer by a byte search in the layout that kube-scheduler writes.
package main

import (
	"bytes"
	"flag"
	"io"
	"net/http"
	"strconv"

	"multiarch-extender.io/benchmarks/reference/internal/listening"
)

// The keys of kube-scheduler's requests in the order and without the spaces that it writes them. None of them, with the
// comma before it, occurs inside a string, where the quotation marks would be escaped.
var (
	nodesKey       = []byte(`,"Nodes":`)
	nodeNamesKey   = []byte(`,"NodeNames":`)
	metaVictimsKey = []byte(`,"NodeNameToMetaVictims":`)
	null           = []byte("null")
)

// filtered is the answer that keeps every node of an ExtenderArgs; nil if the body is laid out in another way. It is cut
// from the body, whose comma before the value's key becomes the answer's opening brace.
func filtered(body []byte) []byte {
	for at := 0; ; {
		found := bytes.Index(body[at:], nodesKey)
		if found < 0 {
			return nil
		}
		start := at + found
		at = start + len(nodesKey)
		switch rest := body[at:]; {
		case bytes.HasPrefix(rest, null) && bytes.HasPrefix(rest[len(null):], nodeNamesKey):
			return opened(body[at+len(null):])
		case bytes.HasPrefix(rest, []byte("{")):
			end := bytes.LastIndex(rest, nodeNamesKey)
			if end < 0 {
				return nil
			}
			rest[end] = '}'
			return opened(body[start : at+end+1])
		}
	}
}

// preempted is the answer that keeps every candidate of an ExtenderPreemptionArgs that names victims by identifier.
func preempted(body []byte) []byte {
	at := bytes.LastIndex(body, metaVictimsKey)
	if at < 0 {
		return nil
	}
	return opened(body[at:])
}

// prioritized gives no node a score, which leaves the choice to kube-scheduler.
func prioritized([]byte) []byte {
	return []byte("[]")
}

// scored gives every second node the highest score, for what kube-scheduler makes of an answer with scores in it.
func scored(body []byte) []byte {
	at := bytes.LastIndex(body, nodeNamesKey)
	if at < 0 || !bytes.HasSuffix(body, []byte("]}")) {
		return nil
	}
	names := bytes.Split(body[at+len(nodeNamesKey)+1:len(body)-2], []byte(","))
	scores := make([]byte, 1, len(body))
	scores[0] = '['
	for index := 0; index < len(names); index += 2 {
		if index > 0 {
			scores = append(scores, ',')
		}
		scores = append(scores, `{"Host":`...)
		scores = append(scores, names[index]...)
		scores = append(scores, `,"Score":10}`...)
	}
	return append(scores, ']')
}

// opened is the object that text is the rest of: its first byte becomes the brace.
func opened(text []byte) []byte {
	text[0] = '{'
	return text
}

// verb is the handler that reads a request and writes what answer makes of its bytes.
func verb(answer func(body []byte) []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := read(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		result := answer(body)
		if result == nil {
			http.Error(w, "not laid out as kube-scheduler writes it", http.StatusBadRequest)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(result)))
		_, _ = w.Write(result)
	}
}

// read returns the whole body, in one allocation where its length is stated.
func read(r *http.Request) ([]byte, error) {
	if r.ContentLength < 0 {
		return io.ReadAll(r.Body)
	}
	body := make([]byte, r.ContentLength)
	_, err := io.ReadFull(r.Body, body)
	return body, err
}

func main() {
	prioritized := prioritized
	flag.BoolFunc("score", "give every second node a score", func(string) error {
		prioritized = scored
		return nil
	})
	flag.Parse()
	mux := http.NewServeMux()
	mux.HandleFunc("POST /scheduler/filter", verb(filtered))
	mux.HandleFunc("POST /scheduler/prioritize", verb(prioritized))
	mux.HandleFunc("POST /scheduler/preempt", verb(preempted))
	listening.Serve(mux)
}
