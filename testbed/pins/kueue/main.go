// Says what Kueue says of two pod templates, for the tests of what the service writes into them.
//
// Each line of the input has two lists of templates, as a job has them, and each line of the output Kueue's answers.
package main

import (
	"encoding/json"
	"io"
	"os"

	corev1 "k8s.io/api/core/v1"

	kueue "sigs.k8s.io/kueue/apis/kueue/v1beta2"
	"sigs.k8s.io/kueue/pkg/util/equality"
	"sigs.k8s.io/kueue/pkg/util/pod"
)

type question struct {
	Plan []corev1.PodTemplateSpec `json:"plan"`
	Job  []corev1.PodTemplateSpec `json:"job"`
}

type answer struct {
	Same         bool     `json:"same"`          // the plan of a job that is not admitted fits the job
	SameAdmitted bool     `json:"same_admitted"` // and that of one that is
	Roles        []string `json:"roles"`         // the role of each of the job's templates in a group of pods
}

func main() {
	lines, out := json.NewDecoder(os.Stdin), json.NewEncoder(os.Stdout)
	for {
		var asked question
		if err := lines.Decode(&asked); err == io.EOF {
			return
		} else if err != nil {
			panic(err)
		}
		if err := out.Encode(answerTo(asked)); err != nil {
			panic(err)
		}
	}
}

func answerTo(asked question) answer {
	plan, job := podSets(asked.Plan), podSets(asked.Job)
	given := answer{
		Same:         equality.ComparePodSetSlices(plan, job, false),
		SameAdmitted: equality.ComparePodSetSlices(plan, job, true),
	}
	for index := range asked.Job {
		role, err := pod.GenerateRoleHash(&asked.Job[index].Spec)
		if err != nil {
			panic(err)
		}
		given.Roles = append(given.Roles, role)
	}
	return given
}

func podSets(templates []corev1.PodTemplateSpec) []kueue.PodSet {
	made := make([]kueue.PodSet, 0, len(templates))
	for _, template := range templates {
		made = append(made, kueue.PodSet{Name: kueue.DefaultPodSetName, Count: 1, Template: template})
	}
	return made
}
