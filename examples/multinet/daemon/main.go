// Package daemon is multinet as a daemon, the program multinetd. The runtime executes
// multinet-shim, which sends each command to the daemon over a unix socket.
//
// The plugin is package plugin of examples/multinet, and package delegate/thick serves it.
// This package configures both (read.go, check.go, config.go), combines them (daemon.go,
// service.go), and says when they are ready (ready.go). It also
//   - publishes the network that names the shim, keeps it in step and takes over
//     containers that others have attached (publish.go),
//   - removes stale attachments (sweep.go),
//   - calls resident plugins (resident.go),
//   - takes networks from a Kubernetes cluster, and writes the status of pods (package
//     cluster),
//   - logs (log.go) and serves metrics (metrics.go).
//
// With the argument webhook the program is an admission webhook instead (webhook.go). With the
// argument doctor it looks at the node and ends (doctor.go).
package daemon

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/delegate/thick"
	"github.com/metacni/metacni/examples/internal/program"
	"github.com/metacni/metacni/examples/multinet/cluster"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/examples/multinet/publish"
)

// Main is the main function of the program multinetd.
func Main() {
	ctx := program.Signals(context.Background(), func(s os.Signal) {
		fmt.Fprintf(os.Stderr, "multinetd: second signal (%v): ended without waiting\n", s)
		os.Exit(1)
	})
	if err := run(ctx, os.Args[1:], defaultFile, os.Environ(), os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "multinetd:", err)
		os.Exit(1)
	}
}

// run runs the daemon, or the webhook, until ctx ends.
func run(ctx context.Context, args []string, defaultFile string, environ []string, stdout, stderr io.Writer) error {
	if len(args) > 0 && args[0] == webhookCommand {
		return runWebhook(ctx, args[1:], defaultFile, stdout, stderr)
	}
	if len(args) > 0 && args[0] == doctorCommand {
		return runDoctor(ctx, args[1:], defaultFile, environ, stdout)
	}
	conf, err := readConfig(args, defaultFile, stdout)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return nil
	case conf.probe != "" && !errors.Is(err, errMisused):
		return probe(conf, err)
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
	log := conf.logger(stderr)
	d := newService(ctx, conf, program.Variable(environ, "PATH"), plugin.Version(), log)
	defer d.startTraces(ctx, environ)()
	waiting := time.AfterFunc(time.Second, func() {
		log.WarnContext(ctx, "waiting for another daemon to release the socket", "directory", conf.SocketDir)
	})
	l, err := d.listen(ctx, environ)
	waiting.Stop()
	if err != nil {
		return err
	}
	manager := program.Variable(environ, "NOTIFY_SOCKET")
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

// probe asks the running daemon for a page, and returns why the answer is not good. With an invalid
// configuration the socket may be another one: then it is no mistake of the daemon if nobody answers.
func probe(conf *config, invalid error) error {
	status, body, err := multinet.AskDaemon(conf.socket(), conf.probe, probeTimeout)
	if err != nil && invalid != nil {
		return nil //nolint:nilerr // see above
	}
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: %d %s", conf.probe, status, body)
	}
	return err
}

// probeTimeout is how long the daemon may take to answer a probe: it asks others for two seconds
// each whether it is ready.
const probeTimeout = 5 * time.Second

// socket is the path of the daemon's socket.
func (c *config) socket() string { return filepath.Join(c.SocketDir, multinet.SocketName) }

// listen returns the socket that the service manager has opened. If there is none,
// it opens one in socketDir, once the previous daemon has released it.
func (d *service) listen(ctx context.Context, environ []string) (net.Listener, error) {
	return thick.Listen(ctx, environ, d.conf.socket())
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
