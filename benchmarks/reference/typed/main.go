// Command typed is a scheduler extender written the way published ones are: net/http, encoding/json and the Kubernetes
// types. It answers filter, prioritize and preempt from a table of platforms that it reads at its start.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	extenderv1 "k8s.io/kube-scheduler/extender/v1"

	"multiarch-extender.io/benchmarks/reference/internal/listening"
)

// preferred is the architecture that a multi-arch pod should run on, and preferredScore what it is worth.
const (
	preferred      = "arm64"
	preferredScore = extenderv1.MaxExtenderPriority
)

// table says which architecture a node has and which architectures an image is built for. What is in neither map is
// not known, and refuses nothing.
type table struct {
	Nodes  map[string]string   `json:"nodes"`
	Images map[string][]string `json:"images"`
}

func readTable(path string) (*table, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	var read table
	if err := json.NewDecoder(file).Decode(&read); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &read, nil
}

// architectureOf tells what a whole node says of itself: the kubelet's word counts before its label.
func architectureOf(node *corev1.Node) string {
	if architecture := node.Status.NodeInfo.Architecture; architecture != "" {
		return architecture
	}
	return node.Labels[corev1.LabelArchStable]
}

func imagesOf(pod *corev1.Pod) []string {
	images := make([]string, 0, len(pod.Spec.InitContainers)+len(pod.Spec.Containers))
	for i := range pod.Spec.InitContainers {
		images = append(images, pod.Spec.InitContainers[i].Image)
	}
	for i := range pod.Spec.Containers {
		images = append(images, pod.Spec.Containers[i].Image)
	}
	return images
}

// verdicts answers, for one pod, whether a node of an architecture is refused. Each architecture is judged once.
type verdicts struct {
	table   *table
	images  []string
	reasons map[string]string
}

func (t *table) verdictsFor(pod *corev1.Pod) *verdicts {
	return &verdicts{table: t, images: imagesOf(pod), reasons: make(map[string]string, 2)}
}

// reason is empty if the pod can run on the architecture, or if the node states none.
func (v *verdicts) reason(architecture string) string {
	if architecture == "" {
		return ""
	}
	reason, known := v.reasons[architecture]
	if !known {
		reason = v.judge(architecture)
		v.reasons[architecture] = reason
	}
	return reason
}

func (v *verdicts) judge(architecture string) string {
	for _, image := range v.images {
		if built, known := v.table.Images[image]; known && !slices.Contains(built, architecture) {
			return fmt.Sprintf("image %s is built for %v, not for %s", image, built, architecture)
		}
	}
	return ""
}

// multiArch is whether every image is known to be built for several architectures, the preferred one among them.
func (v *verdicts) multiArch() bool {
	for _, image := range v.images {
		if built := v.table.Images[image]; len(built) < 2 || !slices.Contains(built, preferred) {
			return false
		}
	}
	return len(v.images) > 0
}

// filter keeps the nodes that the pod can run on, in the form in which the request names them.
func (t *table) filter(args *extenderv1.ExtenderArgs) *extenderv1.ExtenderFilterResult {
	if args.Pod == nil {
		return &extenderv1.ExtenderFilterResult{Error: "the request holds no pod"}
	}
	verdicts := t.verdictsFor(args.Pod)
	result := &extenderv1.ExtenderFilterResult{FailedAndUnresolvableNodes: extenderv1.FailedNodesMap{}}
	switch {
	case args.NodeNames != nil:
		kept := make([]string, 0, len(*args.NodeNames))
		for _, name := range *args.NodeNames {
			if reason := verdicts.reason(t.Nodes[name]); reason != "" {
				result.FailedAndUnresolvableNodes[name] = reason
			} else {
				kept = append(kept, name)
			}
		}
		result.NodeNames = &kept
	case args.Nodes != nil:
		kept := &corev1.NodeList{Items: make([]corev1.Node, 0, len(args.Nodes.Items))}
		for i := range args.Nodes.Items {
			node := &args.Nodes.Items[i]
			if reason := verdicts.reason(architectureOf(node)); reason != "" {
				result.FailedAndUnresolvableNodes[node.Name] = reason
			} else {
				kept.Items = append(kept.Items, *node)
			}
		}
		result.Nodes = kept
	default:
		result.Error = "the request names no nodes"
	}
	return result
}

// prioritize scores every node: a multi-arch pod prefers one architecture, any other pod none.
func (t *table) prioritize(args *extenderv1.ExtenderArgs) *extenderv1.HostPriorityList {
	scores := extenderv1.HostPriorityList{}
	if args.Pod == nil {
		return &scores
	}
	multiArch := t.verdictsFor(args.Pod).multiArch()
	add := func(name, architecture string) {
		score := int64(0)
		if multiArch && architecture == preferred {
			score = preferredScore
		}
		scores = append(scores, extenderv1.HostPriority{Host: name, Score: score})
	}
	switch {
	case args.NodeNames != nil:
		scores = make(extenderv1.HostPriorityList, 0, len(*args.NodeNames))
		for _, name := range *args.NodeNames {
			add(name, t.Nodes[name])
		}
	case args.Nodes != nil:
		scores = make(extenderv1.HostPriorityList, 0, len(args.Nodes.Items))
		for i := range args.Nodes.Items {
			add(args.Nodes.Items[i].Name, architectureOf(&args.Nodes.Items[i]))
		}
	}
	return &scores
}

// preempt drops the candidates that filter would refuse: evicting pods there would not help.
func (t *table) preempt(args *extenderv1.ExtenderPreemptionArgs) *extenderv1.ExtenderPreemptionResult {
	kept := map[string]*extenderv1.MetaVictims{}
	if args.Pod != nil {
		verdicts := t.verdictsFor(args.Pod)
		for name, victims := range candidates(args) {
			if verdicts.reason(t.Nodes[name]) == "" {
				kept[name] = victims
			}
		}
	}
	return &extenderv1.ExtenderPreemptionResult{NodeNameToMetaVictims: kept}
}

// candidates are the victims by node, named by their identifiers whichever way the request names them.
func candidates(args *extenderv1.ExtenderPreemptionArgs) map[string]*extenderv1.MetaVictims {
	if len(args.NodeNameToMetaVictims) > 0 {
		return args.NodeNameToMetaVictims
	}
	found := make(map[string]*extenderv1.MetaVictims, len(args.NodeNameToVictims))
	for name, victims := range args.NodeNameToVictims {
		pods := make([]*extenderv1.MetaPod, 0, len(victims.Pods))
		for _, pod := range victims.Pods {
			pods = append(pods, &extenderv1.MetaPod{UID: string(pod.UID)})
		}
		found[name] = &extenderv1.MetaVictims{Pods: pods, NumPDBViolations: victims.NumPDBViolations}
	}
	return found
}

// verb is the handler that decodes a request, has it answered, and encodes the answer.
func verb[Request, Result any](answer func(*Request) *Result) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var request Request
		if err := json.NewDecoder(r.Body).Decode(&request); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		body, err := json.Marshal(answer(&request))
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body)
	}
}

func main() {
	path := flag.String("table", "", "`FILE` of JSON: {\"nodes\": {name: architecture}, \"images\": {image: [architecture]}}")
	flag.Parse()
	known, err := readTable(*path)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /scheduler/filter", verb(known.filter))
	mux.HandleFunc("POST /scheduler/prioritize", verb(known.prioritize))
	mux.HandleFunc("POST /scheduler/preempt", verb(known.preempt))
	listening.Serve(mux)
}
