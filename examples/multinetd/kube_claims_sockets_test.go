package main

import (
	"os"
	"path/filepath"
	"testing"
)

// A kubelet that is installed again finds the driver of a daemon that goes on.
func TestTheDriverRegistersWithAKubeletThatIsInstalledAgain(t *testing.T) {
	t.Parallel()
	tn := newTownWithClaims(t, "").start(t)
	a := tn.pod(t, "one")
	c := tn.claim(t, "storage", a, parameters("net7", "blue"))
	prepare(t, tn.kubelet(t), c)
	if err := os.RemoveAll(tn.dir + "/kubelet"); err != nil {
		t.Fatal(err)
	}
	tn.until(t, "the probe says so", func() bool {
		_, err := tn.cluster.Probe(t.Context())
		return err != nil
	})
	tn.withKubelet(t)
	k := tn.kubelet(t)
	want(t, "ADD", tn.command(t, "ADD", a, annotated("")), 0, "")
	want(t, "Unprepare", k.Unprepare(t.Context(), c), 0, "")
	want(t, "DEL", tn.command(t, "DEL", a, annotated("")), 0, "")
	tn.until(t, "the probe is content", func() bool {
		_, err := tn.cluster.Probe(t.Context())
		return err == nil
	})
	tn.clean(t)
}

// The next daemon waits for the last one and takes its place. Its driver has the sockets when the
// last one has ended.
func TestTheDriverOfTheNextDaemonHasTheSockets(t *testing.T) {
	t.Parallel()
	tn := newTownWithClaims(t, "").start(t)
	_ = tn.kubelet(t).Close()
	next := newTownIn(t, tn.dir, tn.api, claimKeys+`}`)
	ended := make(chan error, 1)
	go func() { ended <- tn.stop() }()
	next.start(t)
	if err := <-ended; err != nil {
		t.Error(err)
	}
	for _, pattern := range []string{"plugins_registry/*.sock", "plugins/*/*.sock"} {
		if found, err := filepath.Glob(filepath.Join(tn.dir, "kubelet", pattern)); err != nil || len(found) != 1 {
			t.Errorf("%s: %q, %v", pattern, found, err)
		}
	}
	a := tn.pod(t, "one")
	prepare(t, next.kubelet(t), tn.claim(t, "storage", a, parameters("net7", "blue")))
}
