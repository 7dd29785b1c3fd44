// The library by which CRI-O and podman read registries.conf, built for the test that compares it with our reader.
// For another release: exchange the version, remove the indirect requirements, run `go mod tidy`.
module multiarch-extender.io/registries

go 1.26.8

require go.podman.io/image/v5 v5.42.0

require (
	github.com/BurntSushi/toml v1.6.0 // indirect
	github.com/chzyer/readline v1.5.1 // indirect
	github.com/docker/go-units v0.5.0 // indirect
	github.com/manifoldco/promptui v0.9.0 // indirect
	github.com/moby/sys/capability v0.4.0 // indirect
	github.com/moby/sys/mountinfo v0.7.2 // indirect
	github.com/moby/sys/user v0.4.1 // indirect
	github.com/opencontainers/go-digest v1.0.0 // indirect
	github.com/opencontainers/image-spec v1.1.1 // indirect
	github.com/opencontainers/runtime-spec v1.3.0 // indirect
	github.com/sirupsen/logrus v1.10.2 // indirect
	go.podman.io/storage v1.65.0 // indirect
	golang.org/x/sys v0.49.0 // indirect
	golang.org/x/term v0.47.0 // indirect
)
