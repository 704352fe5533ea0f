package publish

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/metacni/metacni/delegate/lifecycle"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
)

const ofBlue = `{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"bridge"}]}`

// A node is one without attachments, with an adopter that tells what it does.
type node struct {
	*nodetest.Node
	*Adopter
	told nodetest.Notes[string]
}

func newNode(t *testing.T) *node {
	t.Helper()
	template, err := netconf.Plugin{}.Edit(netconf.Set("type", "x"), netconf.Set("name", "multi"), Annotations())
	nodetest.OK(t, err)
	n := &node{Node: nodetest.New(t)}
	nodetest.OK(t, errors.Join(os.MkdirAll(n.Path("cni/results"), 0o700), os.Mkdir(n.Path("net.d"), 0o700)))
	n.Adopter = &Adopter{
		Publisher: Manager(n.Path("net.d"), n.Path("net.d", Output), template), Life: &lifecycle.Manager{Dir: n.Path("state")},
		Tell: func(o Outcome) { n.told.Note(string(o.Verdict) + " " + o.Adoption.Key.ContainerID) },
	}
	n.Publisher.Debounce, n.Adopter.Node.CacheDir = 1, n.Path("cni")
	return n
}

// attach writes a cache entry of libcni.
func (n *node) attach(network, container string) {
	n.Helper()
	n.Cached("cni", container, strings.Replace(ofBlue, "blue", network, 1), "/no-such-directory/x")
}

// A pass takes over new containers, and reports nothing twice.
func TestPassTellsOfChanges(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Write("net.d/10-a.conflist", ofBlue)
	n.attach("blue", "c1")
	n.attach("red", "c1") // nobody's
	bad := n.Write("cni/results/blue-bad-eth0", "{")
	for i, want := range [][]string{{"skipped ", "adopted c1"}, nil, {"adopted c2"}, nil, {"skipped "}} {
		switch i {
		case 2:
			n.attach("blue", "c2")
		case 3:
			nodetest.OK(t, os.Remove(bad))
		case 4:
			n.Write("cni/results/blue-bad-eth0", "{")
		}
		n.Pass(t.Context())
		nodetest.Equal(t, fmt.Sprint("pass ", i+1), n.told.Taken(), want)
	}
}

// Primaries are the network that ours is published in front of, embedded or by
// reference, and the one that it would be published in front of now.
func TestPrimaries(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, dir string
		next      string // a network that comes before
		want      []string
	}{
		{name: "published", want: []string{"blue"}},
		{name: "by reference", dir: "/host/net.d", want: []string{"blue"}},
		{name: "about to change", next: "red", want: []string{"blue", "red"}},
		{name: "about to change by reference", dir: "/host/net.d", next: "red", want: []string{"blue", "red"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			m := n.Publisher
			m.ClusterNetworkDir = tt.dir
			nodetest.Equal(t, "of nothing", Primaries(m), nil)
			n.Write("net.d/10-a.conflist", ofBlue)
			nodetest.Equal(t, "before", Primaries(m), []string{"blue"})
			nodetest.OK(t, m.Publish())
			if tt.next != "" {
				n.Write("net.d/05-a.conflist", strings.Replace(ofBlue, "blue", tt.next, 1))
			}
			nodetest.Equal(t, "got", Primaries(m), tt.want)
		})
	}
	n := newNode(t)
	n.Write("net.d/00-multinet.conflist", `{"name":"x","plugins":[{"type":"x","delegates":5}]}`)
	n.Write("net.d/00-multinet.conf", "{")
	nodetest.Equal(t, "of nonsense", Primaries(n.Publisher), nil)
}

// Containers are taken over before the network is published, and again afterwards.
func TestAdopterFollows(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Write("net.d/10-a.conflist", ofBlue)
	n.attach("blue", "c1")
	tell := n.Tell
	ctx, cancel := context.WithCancel(t.Context())
	n.Tell = func(o Outcome) {
		_, err := os.Lstat(n.Publisher.Output + ".conflist")
		if o.Adoption.Key.ContainerID == "c1" && err == nil {
			t.Error("c1 is taken over after the network has been published")
		}
		tell(o)
		if o.Adoption.Key.ContainerID == "c2" {
			cancel()
		}
	}
	err := n.Follow(ctx, func(s autoconf.State) {
		if s.Published != "" {
			n.attach("blue", "c2")
		}
	})
	nodetest.OK(t, err)
	nodetest.Equal(t, "told", n.told.Taken(), []string{"adopted c1", "adopted c2"})
}

// What both Multus and libcni have recorded is taken over once, and a dry run says so.
func TestTakeOfWhatIsRecordedTwice(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Write("net.d/10-a.conflist", ofBlue)
	n.attach("blue", "c1")
	n.Adopter.Node.MultusDir = n.Path("cni")
	n.Write("cni/c1", `[{"Bytes":"`+base64.StdEncoding.EncodeToString([]byte(ofBlue))+`"}]`)
	for _, dryRun := range []bool{true, false} {
		var got []Verdict
		for _, o := range n.Take(t.Context(), dryRun) {
			got = append(got, o.Verdict)
		}
		nodetest.Equal(t, "verdicts", got, []Verdict{map[bool]Verdict{true: Adoptable, false: Adopted}[dryRun], Recorded})
	}
}

// A pass whose context has ended does not report containers that it has not seen.
func TestPassThatIsEnded(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.Write("net.d/10-a.conflist", ofBlue)
	n.attach("blue", "c1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	n.Pass(ctx)
	nodetest.Equal(t, "told", n.told.Taken(), nil)
}

// Networks that a pod cannot use, or would be attached to twice, are skipped.
func TestPrimary(t *testing.T) {
	t.Parallel()
	for network, taken := range map[string]bool{
		`{"cniVersion":"1.0.0","name":"a","type":"bridge"}`:                                                   true,
		`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"loopback"},{"type":"bridge"}]}`:                 true,
		`{"cniVersion":"1.0.0","name":"a","type":"loopback"}`:                                                 false,
		`{"cniVersion":"1.0.0","name":"a","type":"multus"}`:                                                   false,
		`{"cniVersion":"1.0.0","name":"a","type":"multinet"}`:                                                 false,
		`{"cniVersion":"1.0.0","name":"a","type":"x"}`:                                                        false,
		`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"some","delegates":[{"type":"multinet"}]}]}`:     false,
		`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"some","delegates":[{"type":"multinet-not"}]}]}`: true,
	} {
		n := newNode(t)
		name := "10-a.conf"
		if strings.Contains(network, "plugins") {
			name += "list"
		}
		n.Write("net.d/"+name, network)
		if err := n.Publisher.Publish(); (err == nil) != taken || err != nil && !errors.Is(err, autoconf.ErrNoPrimary) {
			t.Errorf("%s: %v", network, err)
		}
	}
}
