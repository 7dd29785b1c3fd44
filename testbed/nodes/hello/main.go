// The program in the images that the tests run: it prints the platform that it was built for, and waits for its end.
// With a number of seconds and an exit code as arguments it ends by itself.
package main

import (
	"os"
	"os/signal"
	"runtime"
	"strconv"
	"syscall"
	"time"
)

func main() {
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGTERM)
	os.Stdout.WriteString("hello from " + runtime.GOOS + "/" + runtime.GOARCH + "\n")
	if len(os.Args) != 3 {
		<-stop
		return
	}
	seconds, _ := strconv.Atoi(os.Args[1])
	code, _ := strconv.Atoi(os.Args[2])
	time.Sleep(time.Duration(seconds) * time.Second)
	os.Exit(code)
}
