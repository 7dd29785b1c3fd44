// Command webhook is a mutating webhook written the way those on controller-runtime are: typed decode of the review and
// of the pod, a change of the typed pod, marshal, and a JSON Patch from the two documents. It adds the tolerations, the
// required node affinity and the annotation that a pod of multi-arch images gets, from a table that it reads at its
// start.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"slices"
	"strings"

	"gomodules.xyz/jsonpatch/v2"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"

	"multiarch-extender.io/benchmarks/reference/internal/listening"
)

// maxBody is what controller-runtime reads of a request at most.
const maxBody = 7 * 1024 * 1024

// table says which architectures an image is built for, and what to add to a pod whose images have several.
type table struct {
	Images      map[string][]string `json:"images"`
	Tolerations []corev1.Toleration `json:"tolerations"`
}

var (
	scheme = runtime.NewScheme()
	codecs = serializer.NewCodecFactory(scheme)
)

func init() {
	utilruntime.Must(admissionv1.AddToScheme(scheme))
	utilruntime.Must(corev1.AddToScheme(scheme))
}

func readTable(path string) (*table, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var read table
	if err := json.Unmarshal(data, &read); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &read, nil
}

// common are the architectures that every image of the pod is built for, and whether every image is known.
func (t *table) common(pod *corev1.Pod) ([]string, bool) {
	var shared []string
	for i, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		built, known := t.Images[container.Image]
		if !known {
			return nil, false
		}
		if i == 0 {
			shared = slices.Clone(built)
		} else {
			shared = slices.DeleteFunc(shared, func(name string) bool { return !slices.Contains(built, name) })
		}
	}
	return shared, true
}

// mutate adds to the pod what its images allow.
func (t *table) mutate(pod *corev1.Pod) {
	shared, known := t.common(pod)
	if !known {
		return
	}
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations["multiarch-extender.io/platforms"] = "linux/" + strings.Join(shared, ",linux/")
	if len(shared) > 1 {
		pod.Spec.Tolerations = append(pod.Spec.Tolerations, t.Tolerations...)
		return
	}
	require(pod, corev1.NodeSelectorRequirement{
		Key: corev1.LabelArchStable, Operator: corev1.NodeSelectorOpIn, Values: shared,
	})
}

// require adds the requirement to each term of the pod's required node affinity.
func require(pod *corev1.Pod, requirement corev1.NodeSelectorRequirement) {
	if pod.Spec.Affinity == nil {
		pod.Spec.Affinity = &corev1.Affinity{}
	}
	if pod.Spec.Affinity.NodeAffinity == nil {
		pod.Spec.Affinity.NodeAffinity = &corev1.NodeAffinity{}
	}
	affinity := pod.Spec.Affinity.NodeAffinity
	if affinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		affinity.RequiredDuringSchedulingIgnoredDuringExecution = &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{}},
		}
	}
	terms := affinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	for i := range terms {
		terms[i].MatchExpressions = append(terms[i].MatchExpressions, requirement)
	}
}

func (t *table) admit(request *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	refused := func(err error) *admissionv1.AdmissionResponse {
		status := &metav1.Status{Message: err.Error(), Code: http.StatusBadRequest}
		return &admissionv1.AdmissionResponse{UID: request.UID, Result: status}
	}
	pod := &corev1.Pod{}
	if _, _, err := codecs.UniversalDeserializer().Decode(request.Object.Raw, nil, pod); err != nil {
		return refused(err)
	}
	t.mutate(pod)
	mutated, err := json.Marshal(pod)
	if err != nil {
		return refused(err)
	}
	operations, err := jsonpatch.CreatePatch(request.Object.Raw, mutated)
	if err != nil {
		return refused(err)
	}
	response := &admissionv1.AdmissionResponse{UID: request.UID, Allowed: true, Result: &metav1.Status{Code: http.StatusOK}}
	if len(operations) > 0 {
		if response.Patch, err = json.Marshal(operations); err != nil {
			return refused(err)
		}
		kind := admissionv1.PatchTypeJSONPatch
		response.PatchType = &kind
	}
	return response
}

func (t *table) handle(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, maxBody))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	review := &admissionv1.AdmissionReview{}
	if _, _, err := codecs.UniversalDeserializer().Decode(body, nil, review); err != nil || review.Request == nil {
		http.Error(w, "the body is no AdmissionReview", http.StatusBadRequest)
		return
	}
	answer := &admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: t.admit(review.Request)}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

func main() {
	path := flag.String("table", "", "`FILE` of JSON: {\"images\": {image: [architecture]}, \"tolerations\": [toleration]}")
	flag.Parse()
	known, err := readTable(*path)
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /admission/pods", known.handle)
	listening.Serve(mux)
}
