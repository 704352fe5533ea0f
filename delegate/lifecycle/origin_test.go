package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
)

// origins are of "blue", "red" and "green"; red has none.
const (
	blueOrigin  = `{"kind":"cluster","n":12345678901234567890,"text":"secret<&>"}`
	greenOrigin = `["secret",1.0]`
)

func planned(origin string, as ...delegate.Attachment) Transaction {
	as[0].Origin = raw(origin)
	return Transaction{Plan: Plan(as...)}
}

func withOrigins(n *node) {
	n.t.Helper()
	blue, red := attachment(network("blue", "bridge", "tuning"), "c1", "eth0"), attachment(network("red", "macvlan"), "c1", "net0")
	if _, err := n.Add(n.t.Context(), eth0, planned(blueOrigin, blue, red)); err != nil {
		n.t.Fatal(err)
	}
	green := attachment(network("green", "ipvlan"), "c1", "hot0")
	if _, err := n.Attach(n.t.Context(), eth0, planned(greenOrigin, green)); err != nil {
		n.t.Fatal(err)
	}
}

// origins are the recorded ones, by interface, as another process reads them.
func (n *node) origins() map[string]string {
	n.t.Helper()
	found := make(map[string]string)
	for r, err := range nodeAt(n.t, n.Dir).Records(n.t.Context()) {
		if err != nil {
			n.t.Fatal(err)
		}
		for _, a := range r.Attached {
			if found[a.IfName] = string(a.Origin); a.Origin == nil {
				found[a.IfName] = "none"
			}
		}
	}
	return found
}

func (n *node) wantOrigins(want map[string]string) {
	n.t.Helper()
	if d := cmp.Diff(want, n.origins()); d != "" {
		n.t.Errorf("origins (-want +got):\n%s", d)
	}
}

// Whatever rewrites a record keeps the origins of the attachments that stay, byte
// for byte.
func TestOriginIsRecordedAsItWasGiven(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.on("ADD bridge", func(context.Context, delegatetest.Call) error {
		n.wantOrigins(map[string]string{"eth0": blueOrigin, "net0": "none"}) // before the first plugin
		return nil
	})
	withOrigins(n)
	all := map[string]string{"eth0": blueOrigin, "net0": "none", "hot0": greenOrigin}
	n.wantOrigins(all)
	n.on("DEL ipvlan", func(context.Context, delegatetest.Call) error { return errors.New("no") })
	if err := n.Detach(t.Context(), eth0, "hot0"); err == nil {
		t.Error("Detach succeeded")
	}
	n.wantOrigins(all)
	n = nodeAt(t, n.Dir) // where DEL ipvlan succeeds
	if err := n.Detach(t.Context(), eth0, "hot0"); err != nil {
		t.Error(err)
	}
	delete(all, "hot0")
	n.wantOrigins(all)
	n.failOn("DEL bridge", 100)
	if err := n.Del(t.Context(), Removal{Key: eth0}); err == nil {
		t.Error("Del succeeded")
	}
	n.wantOrigins(all)
}

func TestOriginIsReturnedByAddAndAdopted(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	a := attachment(network("blue", "bridge"), "c1", "eth0")
	added, err := n.Add(t.Context(), eth0, planned(blueOrigin, a))
	if err != nil || string(added[0].Origin) != blueOrigin {
		t.Errorf("Add: %s, %v", added[0].Origin, err)
	}
	n = newNode(t)
	a.Origin, a.NetNS = raw(blueOrigin), "/run/netns/c1"
	if adopted, err := n.Adopt(t.Context(), Adoption{Key: eth0, Attached: []delegate.Attached{{Attachment: a}}}); err != nil || !adopted {
		t.Fatalf("Adopt: %v, %v", adopted, err)
	}
	n.wantOrigins(map[string]string{"eth0": blueOrigin})
}

// Nothing of an origin is in the configuration, the arguments or the environment
// of a plugin, for any command.
func TestPluginsNeverSeeTheOrigin(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	withOrigins(n)
	if err := n.Check(t.Context(), eth0); err != nil {
		t.Error(err)
	}
	for _, valid := range [][]types.GCAttachment{validFor(eth0), noneValid} { // GC, then DEL
		if err := n.GC(t.Context(), Collection{Network: "multi", Valid: valid}); err != nil {
			t.Error(err)
		}
	}
	verbs := map[string]bool{}
	for _, c := range n.exec.Calls() {
		verbs[c.Command] = true
		seen := fmt.Sprintf("%+v %s", c, c.Stdin)
		if strings.Contains(seen, "secret") {
			t.Errorf("%s: %s", c, seen)
		}
	}
	for _, verb := range []string{"ADD", "CHECK", "DEL", "GC"} {
		if !verbs[verb] {
			t.Errorf("no %s was run", verb)
		}
	}
}

// An origin that could not be read back fails the ADD before a plugin runs.
func TestOriginThatIsNoJSONRunsNothing(t *testing.T) {
	t.Parallel()
	for _, origin := range []string{"{", "secret", `{"a":1} 2`, "\"\xff\""} {
		n := newNode(t)
		_, err := n.Add(t.Context(), eth0, planned(origin, attachment(network("blue", "bridge"), "c1", "eth0")))
		wantCode(t, err, 7)
		if err != nil && (strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "origin")) {
			t.Errorf("%s: %v", origin, err)
		}
		n.wantTrace()
		n.wantNothing()
	}
}

// A record without origins has the form that it had before there were any.
func TestRecordsWithoutOriginsDoNotMentionThem(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(eth0)
	text, err := os.ReadFile(n.recordFile(eth0))
	if err != nil || strings.Contains(string(text), "origin") {
		t.Errorf("written: %s, %v", text, err)
	}
	n.wantOrigins(map[string]string{"eth0": "none", "net0": "none"})
}
