// Multinetd is multinet as a daemon. The runtime executes examples/multinet-shim,
// which sends each command to the daemon over a unix socket.
//
// The plugin is package examples/multinet/multinet, and package delegate/thick
// serves it. This program configures both (config.go) and combines them
// (daemon.go). It also
//   - publishes the network that names the shim (publish.go), keeps it in step and takes
//     over containers that others have attached (publisher.go),
//   - removes stale attachments (sweep.go),
//   - calls resident plugins (resident.go),
//   - takes networks from a Kubernetes cluster, and writes the status of pods (package
//     cluster),
//   - logs (log.go, stderr.go) and serves metrics (metrics.go).
//
// With the argument webhook the program is an admission webhook instead (webhook.go).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/delegate/thick/wire"
	"github.com/metacni/metacni/examples/multinet/publish"
	"github.com/metacni/metacni/examples/multinetd/cluster"
)

func main() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	if !signal.Ignored(syscall.SIGHUP) { // by nohup
		signal.Notify(signals, syscall.SIGHUP)
	}
	go func() {
		fmt.Fprintf(os.Stderr, "multinetd: second signal (%v): ended without waiting\n", secondSignal(signals, cancel))
		os.Exit(1)
	}()
	// The daemon goes on when nobody reads its log any longer. It catches the
	// signal instead of ignoring it, because plugins would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	if err := run(ctx, os.Args[1:], defaultFile, os.Environ(), os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "multinetd:", err)
		os.Exit(1)
	}
}

// oneSignal is how long several signals count as one: timeout(1) and some service managers
// send one to the process and one to its group.
const oneSignal = time.Second

// secondSignal calls end at the first of signals, and returns the second one.
func secondSignal(signals <-chan os.Signal, end func()) os.Signal {
	<-signals
	end()
	for first := time.Now(); ; {
		if s := <-signals; time.Since(first) >= oneSignal {
			return s
		}
	}
}

// run runs the daemon, or the webhook, until ctx ends.
func run(ctx context.Context, args []string, defaultFile string, environ []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == webhookCommand {
		return runWebhook(ctx, args[1:], defaultFile, stdout, stderr)
	}
	conf, err := readConfig(args, defaultFile, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case err != nil:
		return err
	case conf.version:
		_, err := fmt.Fprintln(stdout, "multinetd", plugin.Version())
		return err
	case conf.installShim != "":
		return installShim(os.Executable, conf.installShim)
	}
	if err := conf.findCluster(environ, cluster.TokenFile); err != nil {
		return err
	}
	log := newLogger(stderr, conf)
	d := newDaemon(ctx, conf, variable(environ, "PATH"), plugin.Version(), log)
	waiting := time.AfterFunc(time.Second, func() {
		log.WarnContext(ctx, "waiting for another daemon to release the socket", "directory", conf.SocketDir)
	})
	l, err := d.listen(ctx, environ)
	waiting.Stop()
	if err != nil {
		return err
	}
	manager := variable(environ, "NOTIFY_SOCKET")
	return d.serve(ctx, l, func(state string) {
		if err := notify(manager, state); err != nil {
			log.WarnContext(ctx, "sd_notify failed", "error", err)
		}
	})
}

// installShim copies the shim, which is in the directory of this program, to dir.
// It replaces the file atomically. An image needs no shell for that.
func installShim(self func() (string, error), dir string) error {
	path, err := self()
	if err != nil {
		return err
	}
	return publish.Program(filepath.Join(filepath.Dir(path), shimType), filepath.Join(dir, shimType))
}

// listen returns the socket that the service manager has opened. If there is none,
// it opens one in socketDir, once the previous daemon has released it.
func (d *daemon) listen(ctx context.Context, environ []string) (net.Listener, error) {
	activated, err := thick.Activated(ctx, environ)
	if activated != nil || err != nil {
		return activated, err
	}
	l, err := thick.Listen(ctx, filepath.Join(d.conf.SocketDir, wire.SocketName))
	if err != nil {
		return nil, err
	}
	d.server.HandOver = l.HandOver
	return l, nil
}

// notifyTimeout is how long a service manager may be too busy to read.
const notifyTimeout = 5 * time.Second

// notify sends state to the service manager, see sd_notify(3). An empty socket
// means that there is no service manager.
func notify(socket, state string) error {
	if socket == "" {
		return nil
	}
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		return err
	}
	err = c.SetWriteDeadline(time.Now().Add(notifyTimeout))
	if err == nil {
		_, err = io.WriteString(c, state)
	}
	return errors.Join(err, c.Close())
}
