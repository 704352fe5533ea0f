package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
)

// A stale attachment is removed without a request. The result is logged once,
// however many sweeps there are, and counted.
func TestSweepsWhatIsStale(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, logged, counted string
		fails                 bool
		tries                 int // to wait for
	}{
		{"removed", "stale attachment removed", `multinetd_stale_attachments_tried_total{outcome="ok"}`, false, 1},
		{"stays", "stale attachment cannot be removed", `multinetd_stale_attachments_tried_total{outcome="failed"}`, true, 2},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, `,"sweepInterval":"1ms"`)
			netns := filepath.Join(w.dir, "netns")
			nodetest.OK(t, os.WriteFile(netns, nil, 0o600))
			tried := make(chan struct{}, 1000)
			w.node.On("DEL", func(context.Context, delegatetest.Call) error {
				tried <- struct{}{}
				if tt.fails {
					return types.NewError(101, "not now", "")
				}
				return nil
			})
			w.start(t)
			w.mustRun(t, "ADD", bridge)
			nodetest.OK(t, os.Remove(netns))
			for range tt.tries {
				<-tried
			}
			got := w.final(t)
			if n := got[tt.counted]; n == 0 {
				t.Error("not counted")
			}
			if left := got[`multinetd_records_left{state="stale"}`]; (left == 1) != tt.fails {
				t.Errorf("%v stale", left)
			}
			if n := strings.Count(w.logged.String(), tt.logged); n != 1 {
				t.Errorf("logged %d times: %s", n, w.logged)
			}
			for _, line := range linesOf(t, w.logged, tt.logged) {
				why, _ := line["error"].(string)
				if line["container"] != "c1" || line["ifname"] != "eth0" || strings.Contains(why, "not now") != tt.fails {
					t.Errorf("logged %v", line)
				}
			}
		})
	}
}

// Every directory in which requests keep records is swept.
func TestSweepsEveryStateDirectory(t *testing.T) {
	t.Parallel()
	w := newWorld(t, `,"sweepInterval":"1ms"`)
	w.server.Override = nil
	netns := filepath.Join(w.dir, "netns")
	nodetest.OK(t, os.WriteFile(netns, nil, 0o600))
	removed := make(chan struct{}, 2)
	w.node.On("DEL", func(context.Context, delegatetest.Call) error {
		removed <- struct{}{}
		return nil
	})
	w.start(t)
	for _, dir := range []string{"/one", "/two"} {
		nodetest.OK(t, w.client.Execute(t.Context(), "ADD", w.args(strings.Replace(conf(bridge), "/of/the/runtime", w.dir+dir, 1))))
	}
	nodetest.OK(t, os.Remove(netns))
	<-removed
	<-removed
	w.final(t)
	if left := w.fake.Live(); len(left) > 0 {
		t.Errorf("attached: %q", left)
	}
}

// What is left of an ADD that never succeeded is counted. It is an Event on its pod, once, if it
// cannot be removed.
func TestLeftoverIsAnEventOnce(t *testing.T) {
	t.Parallel()
	w := inCluster(t, `,"sweepInterval":"1ms"`)
	w.node.FailOn("ADD bridge", 101)
	w.node.FailOn("DEL bridge", 101)
	w.start(t)
	want(t, "ADD", w.command(t, "ADD", w.pod(t, "one"), annotated("blue")), 101, "")
	w.until(t, "it is tried again", func() bool { return w.metric(t, `multinetd_stale_attachments_tried_total{outcome="failed"}`) > 1 })
	if n := w.final(t)["multinet_leftovers"]; n != 1 { // Events are written then
		t.Errorf("%v leftovers are counted", n)
	}
	nodetest.Equal(t, "Events", w.events(), []string{"Pod one FailedRemovingInterface"})
}
