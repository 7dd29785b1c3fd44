// Package listening runs an extender's HTTP server until it is told to end.
package listening

import (
	"context"
	"encoding/json"
	"flag"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

const grace = 5 * time.Second

var (
	address     = flag.String("listen", "127.0.0.1:0", "`HOST:PORT` to listen on; port 0 takes a free one")
	parentStdin = flag.Bool("parent-stdin", false, "end when standard input is closed, as it is when the parent ends")
	certificate = flag.String("certificate", "", "`FILE` of the certificate; with it, TLS is spoken")
	key         = flag.String("key", "", "`FILE` of its key")
)

// Serve answers with handler at the address of -listen, which it prints as one line of JSON, until SIGTERM or, with
// -parent-stdin, the end of standard input. Flags must have been parsed.
func Serve(handler http.Handler) {
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	ended, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if *parentStdin {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			stop()
		}()
	}
	server := &http.Server{Handler: handler}
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		<-ended.Done()
		within, cancel := context.WithTimeout(context.Background(), grace)
		defer cancel()
		_ = server.Shutdown(within)
	}()
	line := map[string]string{"address": scheme() + "://" + listener.Addr().String()}
	if err := json.NewEncoder(os.Stdout).Encode(line); err != nil {
		log.Fatal(err)
	}
	if err := serve(server, listener); err != http.ErrServerClosed {
		log.Fatal(err)
	}
	<-closed
}

func scheme() string {
	if *certificate != "" {
		return "https"
	}
	return "http"
}

func serve(server *http.Server, listener net.Listener) error {
	if *certificate != "" {
		return server.ServeTLS(listener, *certificate, *key)
	}
	return server.Serve(listener)
}
