package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/metacni/metacni/internal/nodetest"

	"github.com/metacni/metacni/delegate/kube/kubetest"
)

// outages are the ways in which an API server can be away.
func outages(t *testing.T) map[string]func(*kubetest.Server) (heal func()) {
	t.Helper()
	broken := func(f kubetest.Fault) func(*kubetest.Server) func() {
		return func(s *kubetest.Server) func() {
			heal := s.Break(f)
			s.CutWatches("")
			return heal
		}
	}
	return map[string]func(*kubetest.Server) func(){
		"refused":     func(s *kubetest.Server) func() { s.Stop(); return s.Start },
		"black-holed": broken(kubetest.Fault{BlackHole: true}),
		"401":         broken(kubetest.Fault{Status: 401}),
		"403":         broken(kubetest.Fault{Status: 403}),
		"500":         broken(kubetest.Fault{Status: 500}),
		"slow":        broken(kubetest.Fault{Delay: time.Hour}), // until it is healed
		"rubbish":     broken(kubetest.Fault{Body: "<html>"}),
	}
}

// A test waits for a short time only for the status of each pod.
const impatient = `,"statusTimeout":"50ms","nadWait":"50ms"`

// A daemon that starts while the API is away serves what needs nothing of it, and says on
// /readyz what is missing. STATUS succeeds.
func TestDaemonStartsDuringAnOutage(t *testing.T) {
	t.Parallel()
	for name, begin := range outages(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tn := newTown(t, impatient+`,"events":"off"`)
			end := begin(tn.api)
			tn.world.start(t)
			alone, selecting := tn.pod(t, "alone"), tn.pod(t, "selecting")
			want(t, "STATUS", tn.command(t, "STATUS", alone, annotated("")), 0, "")
			want(t, "ADD of a pod that selects nothing", tn.command(t, "ADD", alone, annotated("")), 0, "")
			want(t, "CHECK", tn.command(t, "CHECK", alone, annotated("")), 0, "")
			want(t, "ADD of a pod that selects", tn.command(t, "ADD", selecting, annotated("blue")), 11, "NAD ns/blue")
			if code, text := tn.get(t, "/readyz?verbose"); code != 503 || !strings.Contains(text, "network-attachment-definitions") {
				t.Errorf("/readyz: %d %s", code, text)
			}
			if code, text := tn.get(t, "/healthz"); code != 200 {
				t.Errorf("/healthz: %d %s", code, text)
			}
			want(t, "DEL", tn.command(t, "DEL", alone, annotated("")), 0, "")
			end()
			tn.until(t, "the definitions are known", func() bool { ok, err := tn.cluster.Probe(t.Context()); return ok && err == nil })
			want(t, "ADD of a pod that selects", tn.command(t, "ADD", selecting, annotated("blue")), 0, "")
			want(t, "DEL", tn.command(t, "DEL", selecting, annotated("")), 0, "")
			tn.clean(t)
		})
	}
}

// A daemon that starts while the API is away takes the definitions that the previous one
// has copied to nadDir, and is ready.
func TestMirrorServesWhileTheAPIIsAway(t *testing.T) {
	t.Parallel()
	keys := impatient + `,"events":"off","nadDir":"$DIR/nads"`
	tn := newTown(t, keys).start(t)
	tn.until(t, "the mirror is written", func() bool {
		_, err := os.Stat(filepath.Join(tn.dir, "nads", "other", "red.conf"))
		return err == nil
	})
	nodetest.OK(t, tn.stop())
	tn.api.Stop()
	next := newTownIn(t, tn.dir, tn.api, keys)
	next.world.start(t)
	if code, text := next.get(t, "/readyz?verbose"); code != 200 || !strings.Contains(text, "not synced") {
		t.Errorf("/readyz: %d %s", code, text)
	}
	a := next.args("")
	a.Args = "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=one;K8S_POD_UID=u1"
	want(t, "ADD", next.command(t, "ADD", a, annotated("blue")), 0, "")
	want(t, "ADD of what the mirror does not have", next.command(t, "ADD", next.pod(t, "two"), annotated("green")), 11, "NAD ns/green")
	next.wantTrace(t, "ADD bridge eth0", "ADD macvlan net1")
}

// A status that is not written when the daemon ends is written by the next one.
func TestNextDaemonWritesTheStatus(t *testing.T) {
	t.Parallel()
	tn := newTown(t, impatient+`,"events":"off"`).start(t)
	heal := tn.api.Break(kubetest.Fault{Verb: "patch", BlackHole: true})
	a := tn.pod(t, "one")
	want(t, "ADD", tn.command(t, "ADD", a, annotated("blue")), 0, "")
	nodetest.OK(t, tn.stop())
	heal()
	before := tn.writes()["patch pods/status"]
	next := newTownIn(t, tn.dir, tn.api, `,"events":"off"`)
	next.start(t)
	next.until(t, "the status is written", func() bool { return tn.status("one") == blueStatus })
	if got := next.writes()["patch pods/status"]; got > before+1 { // the first may have been served when it was healed
		t.Errorf("%d requests", got-before)
	}
}
