// Prints the logins that the kubelet reads from pull secrets, for the test that compares them with ours.
//
// Each line of the input is a core/v1 Secret, and each line of the output what the kubelet makes of it: an error, or the
// logins for each of the images that the first line of the input lists.
package main

import (
	"bufio"
	"encoding/json"
	"os"

	v1 "k8s.io/api/core/v1"
	"k8s.io/kubernetes/pkg/credentialprovider"
	"k8s.io/kubernetes/pkg/credentialprovider/secrets"
)

type answer struct {
	Error  string        `json:"error"`
	Logins [][][2]string `json:"logins"`
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 16<<20)
	out := json.NewEncoder(os.Stdout)
	var images []string
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &images) != nil {
		panic("the first line is no list of images")
	}
	for lines.Scan() {
		var secret v1.Secret
		if err := json.Unmarshal(lines.Bytes(), &secret); err != nil {
			panic(err)
		}
		if err := out.Encode(answerTo(secret, images)); err != nil {
			panic(err)
		}
	}
}

func answerTo(secret v1.Secret, images []string) answer {
	keyring, err := secrets.MakeDockerKeyring([]v1.Secret{secret}, &credentialprovider.BasicDockerKeyring{})
	if err != nil {
		return answer{Error: err.Error()}
	}
	found := answer{}
	for _, image := range images {
		logins := [][2]string{}
		matching, _ := keyring.Lookup(image)
		for _, login := range matching {
			if login.Username != "" || login.Password != "" {
				logins = append(logins, [2]string{login.Username, login.Password})
			}
		}
		found.Logins = append(found.Logins, logins)
	}
	return found
}
