package publish

import (
	"context"
	"encoding/base64"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/lifecycle"
	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
)

const ofBlue = `{"cniVersion":"1.0.0","name":"blue","plugins":[{"type":"bridge"}]}`

// adopter returns one of a node without attachments, and what it tells.
func adopter(t *testing.T) (a *Adopter, told chan string) {
	t.Helper()
	m := manager(t)
	var err error
	if m.Template, err = m.Template.Edit(netconf.Set("name", "multi")); err != nil {
		t.Fatal(err)
	}
	told = make(chan string, 100)
	a = &Adopter{
		Publisher: m, Life: &lifecycle.Manager{Dir: filepath.Join(t.TempDir(), "state")}, Node: adopt.Node{CacheDir: t.TempDir()},
		Tell: func(o Outcome) { told <- string(o.Verdict) + " " + o.Adoption.Key.ContainerID },
	}
	nodetest.OK(t, os.Mkdir(filepath.Join(a.Node.CacheDir, "results"), 0o700))
	return a, told
}

// attach writes a cache entry of libcni.
func (a *Adopter) attach(t *testing.T, network, container string) {
	t.Helper()
	conf := base64.StdEncoding.EncodeToString([]byte(strings.Replace(ofBlue, "blue", network, 1)))
	text := `{"kind":"cniCacheV1","containerId":"` + container + `","config":"` + conf + `","ifName":"eth0","networkName":"` + network + `","netns":"/no-such-directory/x"}`
	nodetest.OK(t, os.WriteFile(filepath.Join(a.Node.CacheDir, "results", network+"-"+container+"-eth0"), []byte(text), 0o600))
}

func all(told chan string) []string {
	var words []string
	for len(told) > 0 {
		words = append(words, <-told)
	}
	return words
}

// A pass takes over new containers, and reports nothing twice.
func TestPassTellsOfChanges(t *testing.T) {
	t.Parallel()
	a, told := adopter(t)
	write(t, a.Publisher, "10-a.conflist", ofBlue)
	a.attach(t, "blue", "c1")
	a.attach(t, "red", "c1") // nobody's
	bad := filepath.Join(a.Node.CacheDir, "results/blue-bad-eth0")
	nodetest.OK(t, os.WriteFile(bad, []byte("{"), 0o600))
	for i, want := range [][]string{{"skipped ", "adopted c1"}, nil, {"adopted c2"}, nil, {"skipped "}} {
		switch i {
		case 2:
			a.attach(t, "blue", "c2")
		case 3:
			nodetest.OK(t, os.Remove(bad))
		case 4:
			nodetest.OK(t, os.WriteFile(bad, []byte("{"), 0o600))
		}
		a.Pass(t.Context())
		if diff := cmp.Diff(want, all(told)); diff != "" {
			t.Errorf("pass %d (-want +got):\n%s", i+1, diff)
		}
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
			a, _ := adopter(t)
			m := a.Publisher
			m.ClusterNetworkDir = tt.dir
			if got := Primaries(m); got != nil {
				t.Errorf("none: %q", got)
			}
			write(t, m, "10-a.conflist", ofBlue)
			nodetest.Equal(t, "before", Primaries(m), []string{"blue"})
			nodetest.OK(t, m.Publish())
			if tt.next != "" {
				write(t, m, "05-a.conflist", strings.Replace(ofBlue, "blue", tt.next, 1))
			}
			nodetest.Equal(t, "got", Primaries(m), tt.want)
		})
	}
	m := manager(t)
	write(t, m, "00-multinet.conflist", `{"name":"x","plugins":[{"type":"x","delegates":5}]}`)
	write(t, m, "00-multinet.conf", "{")
	if got := Primaries(m); got != nil {
		t.Errorf("nonsense: %q", got)
	}
}

// Containers are taken over before the network is published, and again afterwards.
func TestAdopterFollows(t *testing.T) {
	t.Parallel()
	a, told := adopter(t)
	write(t, a.Publisher, "10-a.conflist", ofBlue)
	a.attach(t, "blue", "c1")
	tell := a.Tell
	ctx, cancel := context.WithCancel(t.Context())
	a.Tell = func(o Outcome) {
		_, err := os.Lstat(a.Publisher.Output + ".conflist")
		if o.Adoption.Key.ContainerID == "c1" && err == nil {
			t.Error("c1 is taken over after the network has been published")
		}
		tell(o)
		if o.Adoption.Key.ContainerID == "c2" {
			cancel()
		}
	}
	err := a.Follow(ctx, func(s autoconf.State) {
		if s.Published != "" {
			a.attach(t, "blue", "c2")
		}
	})
	if diff := cmp.Diff([]string{"adopted c1", "adopted c2"}, all(told)); diff != "" || err != nil {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

// What both Multus and libcni have recorded is taken over once, and a dry run says so.
func TestTakeOfWhatIsRecordedTwice(t *testing.T) {
	t.Parallel()
	a, _ := adopter(t)
	write(t, a.Publisher, "10-a.conflist", ofBlue)
	a.attach(t, "blue", "c1")
	a.Node.MultusDir = a.Node.CacheDir
	state := `[{"Bytes":"` + base64.StdEncoding.EncodeToString([]byte(ofBlue)) + `"}]`
	nodetest.OK(t, os.WriteFile(filepath.Join(a.Node.MultusDir, "c1"), []byte(state), 0o600))
	for _, dryRun := range []bool{true, false} {
		var got []Verdict
		for _, o := range a.Take(t.Context(), dryRun) {
			got = append(got, o.Verdict)
		}
		nodetest.Equal(t, "verdicts", got, []Verdict{map[bool]Verdict{true: Adoptable, false: Adopted}[dryRun], Recorded})
	}
}

// A pass whose context has ended does not report containers that it has not seen.
func TestPassThatIsEnded(t *testing.T) {
	t.Parallel()
	a, told := adopter(t)
	write(t, a.Publisher, "10-a.conflist", ofBlue)
	a.attach(t, "blue", "c1")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a.Pass(ctx)
	if got := all(told); got != nil {
		t.Errorf("told %q", got)
	}
}

func manager(t *testing.T) *autoconf.Manager {
	t.Helper()
	template, err := netconf.Plugin{}.Edit(netconf.Set("type", "x"), Annotations())
	nodetest.OK(t, err)
	dir := t.TempDir()
	m := Manager(dir, filepath.Join(dir, Output), template)
	m.Debounce = 1
	return m
}

func write(t *testing.T, m *autoconf.Manager, file, network string) {
	t.Helper()
	nodetest.OK(t, os.WriteFile(filepath.Join(m.Dir, file), []byte(network), 0o600))
}

// Networks that a pod cannot use, or would be attached to twice, are skipped.
func TestPrimary(t *testing.T) {
	t.Parallel()
	for network, taken := range map[string]bool{
		`{"cniVersion":"1.0.0","name":"a","type":"bridge"}`:                                                   true,
		`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"loopback"},{"type":"bridge"}]}`:                 true,
		`{"cniVersion":"1.0.0","name":"a","type":"loopback"}`:                                                 false,
		`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"loopback"},{"type":"loopback"}]}`:               false,
		`{"cniVersion":"1.0.0","name":"a","type":"multus"}`:                                                   false,
		`{"cniVersion":"1.0.0","name":"a","type":"multus-shim"}`:                                              false,
		`{"cniVersion":"1.0.0","name":"a","type":"multinet"}`:                                                 false,
		`{"cniVersion":"1.0.0","name":"a","type":"multinet-shim"}`:                                            false,
		`{"cniVersion":"1.0.0","name":"a","type":"x"}`:                                                        false,
		`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"some","delegates":[{"type":"multinet"}]}]}`:     false,
		`{"cniVersion":"1.0.0","name":"a","plugins":[{"type":"some","delegates":[{"type":"multinet-not"}]}]}`: true,
	} {
		m := manager(t)
		name := "10-a.conf"
		if strings.Contains(network, "plugins") {
			name += "list"
		}
		write(t, m, name, network)
		if err := m.Publish(); (err == nil) != taken || err != nil && !errors.Is(err, autoconf.ErrNoPrimary) {
			t.Errorf("%s: %v", network, err)
		}
	}
}
