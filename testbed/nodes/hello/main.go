// The program in the images that the tests run: it prints the platform that it was built for, and waits for its end.
package main

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	os.Stdout.WriteString("hello from " + runtime.GOOS + "/" + runtime.GOARCH + "\n")
	<-stop
}
