// Prints where the library of CRI-O and podman asks for images, for the tests of the service's own reader.
//
// Each line of the input has the files and the names, and each line of the output what comes of them.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"go.podman.io/image/v5/docker/reference"
	"go.podman.io/image/v5/pkg/shortnames"
	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"
)

type question struct {
	Main    string   `json:"main"`
	DropIns []string `json:"drop_ins"`
	Names   []string `json:"names"`
	Short   []string `json:"short"`
	Mode    string   `json:"mode"`
}

type candidate struct {
	Reference string `json:"reference"`
	Insecure  bool   `json:"insecure"`
	Blocked   bool   `json:"blocked"`
	Namespace string `json:"namespace"`
}

type answer struct {
	Error string        `json:"error"`
	Names [][]candidate `json:"names"` // null: nobody is asked
	Short [][]string    `json:"short"`
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
	folder, err := os.MkdirTemp("", "registries-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	system := systemOf(folder, asked)
	sysregistriesv2.InvalidateCache()
	if _, err := sysregistriesv2.TryUpdatingCache(system); err != nil {
		return answer{Error: err.Error()}
	}
	result := answer{Names: [][]candidate{}, Short: [][]string{}}
	for _, name := range asked.Names {
		found, err := candidatesFor(system, name)
		if err != nil {
			found = nil
		}
		result.Names = append(result.Names, found)
	}
	for _, name := range asked.Short {
		result.Short = append(result.Short, fullNames(system, name))
	}
	return result
}

func systemOf(folder string, asked question) *types.SystemContext {
	main, dropIns := filepath.Join(folder, "registries.conf"), filepath.Join(folder, "registries.conf.d")
	write(main, asked.Main)
	if err := os.Mkdir(dropIns, 0o700); err != nil {
		panic(err)
	}
	for number, text := range asked.DropIns {
		write(filepath.Join(dropIns, fmt.Sprintf("%02d.conf", number)), text)
	}
	mode := types.ShortNameModeEnforcing
	if asked.Mode == "disabled" {
		mode = types.ShortNameModeDisabled
	}
	return &types.SystemContext{
		SystemRegistriesConfPath:    main,
		SystemRegistriesConfDirPath: dropIns,
		UserShortNameAliasConfPath:  filepath.Join(folder, "aliases.conf"),
		ShortNameMode:               &mode,
	}
}

func write(path, text string) {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		panic(err)
	}
}

func candidatesFor(system *types.SystemContext, name string) ([]candidate, error) {
	named, err := reference.ParseNormalizedNamed(name)
	if err != nil {
		return nil, err
	}
	registry, err := sysregistriesv2.FindRegistry(system, named.Name())
	if err != nil {
		return nil, err
	}
	if registry == nil {
		return []candidate{{Reference: named.String()}}, nil
	}
	sources, err := registry.PullSourcesFromReference(named)
	if err != nil {
		return nil, err
	}
	found := []candidate{}
	for _, source := range sources {
		there, err := sysregistriesv2.FindRegistry(system, source.Reference.Name())
		if err != nil {
			return nil, err
		}
		found = append(found, candidate{
			Reference: source.Reference.String(),
			Insecure:  source.Endpoint.Insecure,
			Blocked:   there != nil && there.Blocked,
			Namespace: source.Endpoint.NamespaceProxy,
		})
	}
	return found, nil
}

func fullNames(system *types.SystemContext, name string) []string {
	resolved, err := shortnames.Resolve(system, name)
	if err != nil {
		return nil
	}
	names := []string{}
	for _, each := range resolved.PullCandidates {
		names = append(names, each.Value.String())
	}
	return names
}
