// Prints the registries.conf that OpenShift's machine-config operator makes of objects, for the tests of the service.
//
// Each line of the input has objects, and each line of the output what comes of them.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"

	"github.com/BurntSushi/toml"
	"github.com/containers/image/v5/pkg/sysregistriesv2"
	configv1 "github.com/openshift/api/config/v1"
	operatorv1alpha1 "github.com/openshift/api/operator/v1alpha1"
	"github.com/openshift/runtime-utils/pkg/registries"
)

type question struct {
	DigestSets []*configv1.ImageDigestMirrorSet             `json:"digest_sets"`
	TagSets    []*configv1.ImageTagMirrorSet                `json:"tag_sets"`
	Policies   []*operatorv1alpha1.ImageContentSourcePolicy `json:"policies"`
	Insecure   []string                                     `json:"insecure"`
	Blocked    []string                                     `json:"blocked"`
}

type answer struct {
	Error string `json:"error"`
	Conf  string `json:"conf"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	out := json.NewEncoder(os.Stdout)
	for lines.Scan() {
		var asked question
		if err := json.Unmarshal(lines.Bytes(), &asked); err != nil {
			panic(err)
		}
		if err := out.Encode(answerTo(asked)); err != nil {
			panic(err)
		}
	}
}

func answerTo(asked question) answer {
	conf := sysregistriesv2.V2RegistriesConf{}
	err := registries.EditRegistriesConfig(
		&conf, asked.Insecure, asked.Blocked, asked.Policies, asked.DigestSets, asked.TagSets)
	if err != nil {
		return answer{Error: err.Error()}
	}
	text := bytes.Buffer{}
	if err := toml.NewEncoder(&text).Encode(conf); err != nil {
		panic(err)
	}
	return answer{Conf: text.String()}
}
