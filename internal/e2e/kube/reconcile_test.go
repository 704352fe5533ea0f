package kube

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"slices"
	"syscall"
	"testing"
)

// newFollower makes a node whose running pods follow their annotation. There are the
// definitions blue and green. The plugin of green, in a directory of its own, can be held
// up; that of blue is only in CNI_PATH.
func newFollower(t *testing.T) *node {
	t.Helper()
	n := newNode(t, world(t).Server, object{"reconcile": true})
	n.keys["binDir"] = n.file("bin")
	n.grantPods()
	n.define(n.namespace, "blue", 1)
	if err := os.Mkdir(n.file("bin"), 0o700); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf("#!/bin/sh\nif [ -p %[1]s-$CNI_COMMAND ]; then : > %[1]s; cat %[1]s-$CNI_COMMAND < /dev/null; fi\nexec %[2]s\n", n.file("hold"), bin("bridge"))
	if err := os.WriteFile(n.file("bin", "slow"), []byte(script), 0o700); err != nil { //nolint:gosec // it is a program
		t.Fatal(err)
	}
	green := n.bridge(2)
	green["type"] = "slow"
	config, err := json.Marshal(green)
	if err != nil {
		t.Fatal(err)
	}
	request(t, n.Admin(), http.MethodPost, nads+"namespaces/"+n.namespace+"/network-attachment-definitions",
		definition(n.namespace, "green", string(config))).is(t, http.StatusCreated, "")
	return n
}

// edit changes what a pod selects, as users do.
func (n *node) edit(s *sandbox, networks string) {
	n.t.Helper()
	n.Kubectl(n.t, "", "annotate", "--overwrite", "-n", s.pod.Namespace, "pod", s.pod.Name, networksAnnotation+"="+networks)
}

// wantSoon waits until a pod has networks, and its status says so.
func (n *node) wantSoon(s *sandbox, networks ...string) {
	n.t.Helper()
	n.t.Cleanup(func() {
		if n.t.Failed() {
			names, interfaces := n.status(s.pod)
			n.t.Logf("want %q; %s has %q, status %q %q", networks, s.pod.Name, n.attached(s), names, interfaces)
		}
	})
	eventually(n.t, func() bool { return n.right(s, networks...) })
}

// hold holds up a command of the plugin of green. release returns once nothing does any more.
func (n *node) hold(command string) (held func() bool, release func()) {
	n.t.Helper()
	fifo := n.file("hold-" + command)
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		n.t.Fatal(err)
	}
	held = func() bool {
		_, err := os.Stat(n.file("hold"))
		return err == nil
	}
	return held, func() {
		n.t.Helper()
		w, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		if err != nil {
			n.t.Fatal(err)
		}
		for _, err := range []error{os.Remove(fifo), os.Remove(n.file("hold")), w.Close()} {
			if err != nil {
				n.t.Fatal(err)
			}
		}
	}
}

// What a user selects for a running pod is attached, what is not selected any more is
// detached, and two networks can swap their interfaces. The status in the API follows, with
// one request for each edit. A pod that ends is left alone.
func TestRunningPodFollowsItsAnnotation(t *testing.T) {
	t.Parallel()
	n := newFollower(t)
	n.ready()
	blue, green := n.namespace+"/blue", n.namespace+"/green"
	s, other := n.pod("one", "blue"), n.pod("two", "")
	n.ok("ADD", s)
	n.ok("ADD", other)
	n.wantSoon(s, "multi", blue)
	for _, step := range []struct {
		networks string
		want     []string
	}{
		{"blue,green", []string{"multi", blue, green}},
		{"green", []string{"multi", green}},
		{"green@x,blue@y", []string{"multi", green, blue}},
		{"blue@x,green@y", []string{"multi", blue, green}},
		{"", []string{"multi"}},
		{"blue", []string{"multi", blue}},
	} {
		before := len(n.gate.made("PATCH"))
		n.edit(s, step.networks)
		n.wantSoon(s, step.want...)
		same(t, "requests for "+step.networks, 1, len(n.gate.made("PATCH"))-before)
	}
	n.ok("CHECK", s)
	n.edit(s, "[{")
	eventually(t, func() bool { return slices.Contains(n.events(s.pod), "InvalidNetwork") })
	n.Kubectl(t, "", "delete", "-n", n.namespace, "pod", s.pod.Name, "--wait=false") // no kubelet ends it
	n.edit(s, "green")
	n.edit(other, "green") // the daemon sees this later
	n.wantSoon(other, "multi", green)
	n.wantSoon(s, "multi", blue)
	same(t, "pods that differ", "0", n.metric("multinetd_pods_differing"))
	n.ok("DEL", s)
	n.ok("DEL", other)
	n.wantNothing(s, other)
}

// Whenever the daemon is killed, the next one ends with what the pod selects, and nothing
// else is left: while it attaches, while it detaches, and while there is an edit.
func TestDaemonKilledWhileItFollowsAnAnnotation(t *testing.T) {
	t.Parallel()
	n := newFollower(t)
	n.ready()
	blue, green := n.namespace+"/blue", n.namespace+"/green"
	s := n.pod("one", "blue@x")
	n.ok("ADD", s)
	for _, step := range []struct {
		held, networks, then string
		want                 []string
	}{
		{"ADD", "blue@x,green@y", "blue@x,green@y", []string{"multi", blue, green}},
		{"DEL", "blue@x", "blue@x,green@z", []string{"multi", blue, green}},
		{"DEL", "green@x,blue@z", "green@x,blue@z", []string{"multi", green, blue}}, // swapped
		{"ADD", "blue@x,green@z", "blue@z", []string{"multi", blue}},
	} {
		held, release := n.hold(step.held)
		n.edit(s, step.networks)
		eventually(t, held)
		n.kill()
		n.edit(s, step.then)
		release()
		n.ready()
		n.wantSoon(s, step.want...)
		eventually(t, func() bool { return len(n.leases()) == len(step.want) }) // sweeps remove what the kill has left
	}
	n.ok("CHECK", s)
	n.ok("DEL", s)
	n.wantNothing(s)
}
