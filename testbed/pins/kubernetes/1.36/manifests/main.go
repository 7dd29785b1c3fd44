// Prints the objects that kubectl reads in manifests, for the tests of the service.
//
// Each line of the input has a manifest in base64, and each line of the output what comes of it.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
)

type answer struct {
	Error     string            `json:"error"`
	Documents []json.RawMessage `json:"documents"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var text []byte
		if err := json.Unmarshal(lines.Bytes(), &text); err != nil {
			panic(err)
		}
		if err := out.Encode(answerTo(text)); err != nil {
			panic(err)
		}
	}
}

// answerTo reads as cli-runtime's StreamVisitor does.
func answerTo(text []byte) answer {
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	found := answer{Documents: []json.RawMessage{}}
	for {
		var read runtime.RawExtension
		if err := decoder.Decode(&read); err != nil {
			if !errors.Is(err, io.EOF) {
				found.Error = err.Error()
			}
			return found
		}
		raw := bytes.TrimSpace(read.Raw)
		if len(raw) == 0 || bytes.Equal(raw, []byte("null")) {
			continue
		}
		found.Documents = append(found.Documents, raw)
	}
}
