// Pause is the only program of a pod in the tests. It tells the name of its pod to whoever
// connects to port 80.
package main

import (
	"fmt"
	"net"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	name, err := os.Hostname()
	if err != nil {
		fail(err)
	}
	l, err := net.Listen("tcp", ":80")
	if err != nil {
		fail(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				fail(err)
			}
			_, _ = fmt.Fprint(c, name)
			_ = c.Close()
		}
	}()
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, syscall.SIGINT)
	<-end
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, "pause:", err)
	os.Exit(1)
}
