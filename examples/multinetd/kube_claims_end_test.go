package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/nodetest"
)

// nextWithClaims ends the daemon and starts the next one in its place.
func (tn *town) nextWithClaims(t *testing.T, keys string) *town {
	t.Helper()
	nodetest.OK(t, tn.stop())
	next := newTownIn(t, tn.dir, tn.api, claimKeys+keys+`}`)
	next.exec, next.fake = tn.fake, tn.fake
	return next.start(t)
}

// Between two steps the daemon may be replaced, and the API may be away: nothing is lost.
func TestClaimsOutliveTheDaemon(t *testing.T) {
	t.Parallel()
	tn := newTownWithClaims(t, `,"metadata":true,"cdiDir":"$DIR/cdi"`).start(t)
	a := tn.pod(t, "one")
	c := tn.claim(t, "storage", a, parameters("net7", "blue"))
	prepare(t, tn.kubelet(t), c)
	const keys = `,"metadata":true,"cdiDir":"$DIR/cdi"`
	tn = tn.nextWithClaims(t, keys)
	heal := tn.api.Break(kubetestFault("update"))
	want(t, "ADD", tn.command(t, "ADD", a, annotated("")), 0, "")
	tn.until(t, "the status is refused", func() bool { return tn.api.Count("update", "resourceclaims/status") > 0 })
	if got := tn.condition("storage"); got != "" {
		t.Errorf("status: %s", got)
	}
	heal()
	tn = tn.nextWithClaims(t, keys)
	tn.until(t, "the next daemon writes the status", func() bool { return tn.condition("storage") == ready })
	if got := tn.fake.Live(); !slices.Equal(got, []string{"bridge c-one eth0", "macvlan c-one net7"}) {
		t.Errorf("attached: %q", got)
	}
	// The DEL has not come: the network of the claim is removed, and no other.
	tn = tn.nextWithClaims(t, keys)
	k := tn.kubelet(t)
	for range 2 {
		want(t, "Unprepare", k.Unprepare(t.Context(), c), 0, "")
	}
	if got := tn.fake.Live(); !slices.Equal(got, []string{"bridge c-one eth0"}) {
		t.Errorf("attached: %q", got)
	}
	if files, _ := filepath.Glob(tn.dir + "/cdi/*"); len(files) > 0 {
		t.Errorf("left: %q", files)
	}
	tn = tn.nextWithClaims(t, keys)
	want(t, "DEL", tn.command(t, "DEL", a, annotated("")), 0, "")
	tn.clean(t)
}

// The kubelet hears of a claim that cannot be released, and asks again. Sandboxes of other pods
// keep what they have.
func TestUnprepareRemovesWhatIsLeftOfAllSandboxes(t *testing.T) {
	t.Parallel()
	tn := newTownWithClaims(t, "").start(t)
	k := tn.kubelet(t)
	a, other := tn.pod(t, "one"), tn.pod(t, "two")
	c, d := tn.claim(t, "storage", a, parameters("net7", "blue")), tn.claim(t, "other", other, parameters("net7", "blue"))
	prepare(t, k, c, d)
	b := *a
	b.ContainerID += "-2"
	b.Args = strings.ReplaceAll(a.Args, a.ContainerID, b.ContainerID)
	want(t, "ADD", tn.command(t, "ADD", a, annotated("blue")), 0, "")
	want(t, "ADD", tn.command(t, "ADD", &b, annotated("")), 0, "")
	want(t, "ADD", tn.command(t, "ADD", other, annotated("")), 0, "")
	macvlan := tn.fake.Plugins["macvlan"]
	tn.fake.Plugins["macvlan"] = delegatetest.FailOn("DEL", 101, "not now", macvlan)
	if err := k.Unprepare(t.Context(), c); err == nil || !strings.Contains(err.Error(), "not now") {
		t.Errorf("Unprepare: %v", err)
	}
	if claims, _, err := tn.claimStore().All(); err != nil || len(claims) != 2 {
		t.Errorf("prepared: %v, %v", claims, err)
	}
	tn.fake.Plugins["macvlan"] = macvlan
	want(t, "Unprepare", k.Unprepare(t.Context(), c), 0, "")
	left := []string{"bridge c-one eth0", "bridge c-one-2 eth0", "bridge c-two eth0", "macvlan c-one net1", "macvlan c-two net7"}
	if got := tn.fake.Live(); !slices.Equal(got, left) {
		t.Errorf("attached: %q, want %q", got, left)
	}
	tn.until(t, "the other claim stays", func() bool { return tn.condition("other") == ready })
}

// A sweep that removes a container says so in the status of its claims, although nobody has
// told the daemon whose container it was.
func TestStatusOfAClaimFollowsSweeps(t *testing.T) {
	t.Parallel()
	tn := newTown(t, `,"sweepInterval":"10ms"`+claimKeys+`}`).withKubelet(t)
	a := tn.pod(t, "one")
	nodetest.OK(t, os.WriteFile(a.Netns, nil, 0o600))
	tn.start(t)
	prepare(t, tn.kubelet(t), tn.claim(t, "storage", a, parameters("net7", "blue")))
	want(t, "ADD", tn.command(t, "ADD", a, annotated("")), 0, "")
	tn.until(t, "the status is written", func() bool { return tn.condition("storage") == ready })
	nodetest.OK(t, os.Remove(a.Netns))
	tn.until(t, "the status is that of a pod without a container", func() bool { return tn.condition("storage") == notReady })
	tn.clean(t)
}

// The daemon starts while the API is away, and the ADD of a pod with claims that are prepared
// needs nobody.
func TestPreparedClaimsAreAttachedWhileTheAPIIsAway(t *testing.T) {
	t.Parallel()
	tn := newTownWithClaims(t, "").start(t)
	a := tn.pod(t, "one")
	prepare(t, tn.kubelet(t), tn.claim(t, "storage", a, `{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNI","ifName":"net7",
		"config":{"cniVersion":"1.0.0","name":"n","type":"macvlan"}}`))
	nodetest.OK(t, tn.stop())
	tn.api.Stop()
	next := newTownIn(t, tn.dir, tn.api, claimKeys+`}`)
	next.world.start(t)
	want(t, "ADD", next.command(t, "ADD", a, annotated("")), 0, "")
	if got := next.fake.Live(); !slices.Equal(got, []string{"bridge c-one eth0", "macvlan c-one net7"}) {
		t.Errorf("attached: %q", got)
	}
	want(t, "DEL", next.command(t, "DEL", a, annotated("")), 0, "")
	next.clean(t)
}

// A pod whose claims an earlier daemon has prepared does not start without its networks: not with
// a daemon without dra, and not with one that forbids them now.
func TestPreparedClaimsAreNotLostByAnotherConfiguration(t *testing.T) {
	t.Parallel()
	const inline = `{"apiVersion":"cni.networking.x-k8s.io/v1alpha1","kind":"CNI","ifName":"net7","config":{"cniVersion":"1.0.0","name":"n","type":"macvlan"}}`
	for name, row := range map[string]struct {
		keys, text string
		code       uint
	}{
		"without dra":           {`,"nodeName":"n1"`, `need "dra" in the configuration`, 11},
		"without allowed types": {`,"nodeName":"n1","kubeletDir":"$DIR/kubelet","dra":{"driver":"net.example.com"}`, "allowedTypes", 7},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tn := newTownWithClaims(t, "").start(t)
			a, other := tn.pod(t, "one"), tn.pod(t, "two")
			prepare(t, tn.kubelet(t), tn.claim(t, "storage", a, inline))
			want(t, "ADD", tn.command(t, "ADD", a, annotated("")), 0, "")
			nodetest.OK(t, tn.stop())
			b := *a
			b.ContainerID += "-2"
			b.Args = strings.ReplaceAll(a.Args, a.ContainerID, b.ContainerID)
			changed := newTownIn(t, tn.dir, tn.api, row.keys)
			changed.exec, changed.fake = tn.fake, tn.fake
			changed.start(t)
			want(t, "ADD", changed.command(t, "ADD", &b, annotated("")), row.code, row.text)
			if logged := strings.Contains(changed.logged.String(), "ResourceClaims are prepared, but"); logged != (row.code == 11) {
				t.Errorf("log: %s", changed.logged)
			}
			want(t, "ADD", changed.command(t, "ADD", other, annotated("")), 0, "")
			for _, c := range []*skel.CmdArgs{a, &b, other} {
				want(t, "DEL", changed.command(t, "DEL", c, annotated("")), 0, "")
			}
			changed.clean(t)
			again := changed.nextWithClaims(t, "")
			want(t, "ADD", again.command(t, "ADD", a, annotated("")), 0, "")
			again.until(t, "the status is written", func() bool { return again.condition("storage") == ready })
			want(t, "DEL", again.command(t, "DEL", a, annotated("")), 0, "")
		})
	}
}

// A claim is released when the ADD has read it, but has recorded nothing yet. The pod keeps nothing
// of the claim, which may be that of another pod now.
func TestAClaimThatIsReleasedDuringTheADDIsNotAttached(t *testing.T) {
	t.Parallel()
	tn := newTownWithClaims(t, "")
	var during atomic.Pointer[func()]
	tn.interfaceNames = func(string) ([]string, error) {
		if do := during.Load(); do != nil {
			(*do)()
		}
		return nil, nil
	}
	tn.start(t)
	k := tn.kubelet(t)
	a := tn.pod(t, "one")
	c := tn.claim(t, "storage", a, parameters("net7", "blue"))
	prepare(t, k, c)
	release := func() { want(t, "Unprepare", k.Unprepare(t.Context(), c), 0, "") }
	during.Store(&release)
	want(t, "ADD", tn.command(t, "ADD", a, annotated("")), 11, "claim ns/storage: not prepared: the kubelet has released it during the ADD")
	tn.clean(t)
	want(t, "DEL", tn.command(t, "DEL", a, annotated("")), 0, "")
	tn.clean(t)
}
