package dra

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	registration "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/metacni/metacni/internal/nodetest"
)

// poll waits until done, which depends on files alone, is true.
func poll(t *testing.T, what string, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	again := time.NewTicker(2 * time.Millisecond)
	defer again.Stop()
	for !done() {
		select {
		case <-ctx.Done():
			t.Fatalf("it does not happen that %s", what)
		case <-again.C:
		}
	}
}

// A kubelet that is installed again has new directories, and looks for sockets in them.
func TestTheDriverMakesLostSocketsAgain(t *testing.T) {
	t.Parallel()
	for _, lost := range []string{"registry", "plugin", "both", "socket"} {
		t.Run(lost, func(t *testing.T) {
			t.Parallel()
			n := newNode(t, nil)
			a, b := n.server.SetClaim(newClaim("a", nil)), n.server.SetClaim(newClaim("b", nil))
			mustPrepare(t, n.kubelet(t), a)
			nodetest.OK(t, n.publish(t.Context(), []resourcev1.Device{{Name: "storage"}}))
			remove := map[string][]string{
				"registry": {n.config.registry()}, "plugin": {n.config.plugin()}, "both": {n.config.registry(), n.config.plugin()},
				"socket": {filepath.Join(n.config.plugin(), "dra.sock")},
			}
			for _, path := range remove[lost] {
				nodetest.OK(t, os.RemoveAll(path))
			}
			if lost == "registry" || lost == "both" {
				poll(t, "the kubelet is missed", func() bool { return n.Err() != nil })
				if err := n.Err(); !strings.Contains(err.Error(), "the directory in which the kubelet finds plugins") {
					t.Error(err)
				}
				nodetest.OK(t, os.Mkdir(n.config.registry(), 0o750))
			}
			poll(t, "the sockets are there", func() bool {
				_, registry := os.Stat(filepath.Join(n.config.registry(), driverName+"-reg.sock"))
				_, plugin := os.Stat(filepath.Join(n.config.plugin(), "dra.sock"))
				return registry == nil && plugin == nil && n.Err() == nil
			})
			k := n.kubelet(t)
			mustPrepare(t, k, a, b)
			if err := unprepareClaim(t, k, a); err != nil {
				t.Error(err)
			}
			if err := n.publish(t.Context(), nil); err != nil {
				t.Error(err)
			}
			n.Stop()
			if left, _ := filepath.Glob(n.config.registry() + "/*"); len(left) > 0 {
				t.Errorf("left: %q", left)
			}
		})
	}
}

// The next daemon may start before the last one has ended: its sockets stay.
func TestADriverThatStopsLeavesTheSocketsOfTheNext(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	next, err := Start(t.Context(), n.config)
	nodetest.OK(t, err)
	t.Cleanup(next.Stop)
	poll(t, "the driver sees the next one", func() bool { return n.Err() != nil })
	if err := n.Err(); !errors.Is(err, errTaken) {
		t.Error(err)
	}
	n.Stop()
	mustPrepare(t, n.kubelet(t), n.server.SetClaim(newClaim("a", nil)))
	if err := next.Err(); err != nil {
		t.Error(err)
	}
}

// A helper that cannot serve any more is replaced.
func TestAHelperThatFailsIsReplaced(t *testing.T) {
	t.Parallel()
	n := newNode(t, nil)
	n.serving.Lock()
	first := n.service.helper
	n.serving.Unlock()
	plugin{n.Driver}.HandleError(t.Context(), errors.New("accept: too many open files"), "the server failed")
	poll(t, "the helper is replaced", func() bool {
		n.serving.Lock()
		defer n.serving.Unlock()
		return n.service.helper != first
	})
	mustPrepare(t, n.kubelet(t), n.server.SetClaim(newClaim("a", nil)))
}

// The kubelet says whether it takes the driver, and the log repeats it.
func TestTheLogSaysWhetherTheKubeletTakesTheDriver(t *testing.T) {
	t.Parallel()
	var log strings.Builder // calls come one at a time
	d := &Driver{log: slog.New(slog.NewTextHandler(&log, nil)), config: Config{Name: driverName}}
	for _, row := range []struct {
		status *registration.RegistrationStatus
		want   string
	}{
		{&registration.RegistrationStatus{PluginRegistered: true}, "level=INFO msg=\"the kubelet has registered the DRA driver\" driver=" + driverName},
		{&registration.RegistrationStatus{Error: "no such version"}, "level=ERROR msg=\"the kubelet refuses the DRA driver\" driver=" + driverName + " error=\"no such version\""},
	} {
		log.Reset()
		handled := false
		_, err := d.noteRegistration(t.Context(), row.status, nil, func(context.Context, any) (any, error) { handled = true; return nil, nil })
		if err != nil || !handled || !strings.Contains(log.String(), row.want) {
			t.Errorf("handled %v, %v: %s", handled, err, log.String())
		}
	}
	n := newNode(t, func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	log.Reset()
	_ = n.kubelet(t)
	n.Stop()
	if !strings.Contains(log.String(), "the kubelet has registered the DRA driver") {
		t.Errorf("log: %s", log.String())
	}
}
