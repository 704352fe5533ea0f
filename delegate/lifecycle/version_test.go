package lifecycle

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/scratch"
)

// laterVersion puts k's record in a version of the format
// that this program does not know. It returns what is in the file.
func (n *node) laterVersion(k scratch.Key) string {
	n.t.Helper()
	json := fmt.Sprintf(`{"version":3,"network":%q,"container":%q,"ifname":%q,"delegates":"elsewhere"}`, k.Network, k.ContainerID, k.IfName)
	sum := sha256.Sum256([]byte(json))
	file := fmt.Sprintf("%s %s\n", hex.EncodeToString(sum[:8]), json)
	if err := os.WriteFile(n.recordFile(k), []byte(file), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return file
}

// A record of a version that is not known is left alone by every verb, which
// says so, and runs nothing.
func TestUnknownVersionIsLeftAlone(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(key("c2", "eth0"))
	n.add(eth0)
	file := n.laterVersion(eth0)
	calls := n.trace()
	for range 2 {
		for verb, do := range map[string]func() error{
			"ADD":    func() error { _, err := n.Add(t.Context(), eth0, pair(eth0)); return err },
			"CHECK":  func() error { return n.Check(t.Context(), eth0) },
			"DEL":    func() error { return n.Del(t.Context(), Removal{Key: eth0}) },
			"ATTACH": func() error { _, err := n.Attach(t.Context(), eth0, hotplug(eth0)); return err },
			"DETACH": func() error { return n.Detach(t.Context(), eth0, "net0") },
			"one":    func() error { _, err := n.Container(t.Context(), "c1"); return err },
			"forget": func() error { return n.forget(eth0) },
		} {
			err := do()
			wantCode(t, err, 5)
			if !errors.Is(err, scratch.ErrVersion) || errors.Is(err, scratch.ErrCorrupt) {
				t.Errorf("%s: %v", verb, err)
			}
			if e := (*Error)(nil); verb == "DEL" && (!errors.As(err, &e) || e.Key != eth0) {
				t.Errorf("%s: %v", verb, err)
			}
		}
		n.wantRecords("c1/eth0 damaged", "c2/eth0 added")
	}
	n.wantTrace(calls...)
	for _, k := range []scratch.Key{key("c1", "eth1"), key("c2", "eth0")} { // others are no worse for it
		if _, err := n.Add(t.Context(), k, pair(k)); err != nil && !errors.Is(err, ErrAdded) {
			t.Error(err)
		}
		if err := n.Check(t.Context(), k); err != nil {
			t.Error(err)
		}
		n.del(k)
	}
	if got, err := os.ReadFile(n.recordFile(eth0)); err != nil || string(got) != file {
		t.Errorf("the record is %s, %v", got, err)
	}
	if left := n.files(); !cmp.Equal(left, []string{"c1@lock", filepath.Base(n.recordFile(eth0))}) {
		t.Errorf("files: %q", left)
	}
}

// GC names such a record every time and leaves it alone. Plugins are told only
// when it is not of a valid attachment.
func TestGCNamesUnknownVersions(t *testing.T) {
	t.Parallel()
	c2 := key("c2", "eth0")
	for name, tt := range map[string]struct {
		of   scratch.Key
		told bool
	}{
		"valid":              {eth0, false},
		"stale":              {key("c9", "eth0"), true},
		"of another network": {scratch.Key{Network: "other", ContainerID: "c9", IfName: "eth0"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			n.add(c2)
			n.add(key("c3", "eth0")) // stale
			n.add(tt.of)
			if tt.of != eth0 {
				n.add(eth0)
			}
			file := n.laterVersion(tt.of)
			for range 2 {
				before := len(n.gcs())
				err := n.GC(t.Context(), Collection{Network: "multi", Valid: validFor(eth0, c2)})
				wantCode(t, err, 5)
				if !errors.Is(err, scratch.ErrVersion) {
					t.Errorf("err = %v", err)
				}
				if told := len(n.gcs()) > before; told != tt.told {
					t.Errorf("told: %q", n.gcs()[before:])
				}
			}
			if tt.told {
				wantValid(t, n.last("GC macvlan"), "c1 net0", "c2 net0")
			}
			if got, err := os.ReadFile(n.recordFile(tt.of)); err != nil || string(got) != file {
				t.Errorf("the record is %s, %v", got, err)
			}
			rs, _ := n.Container(t.Context(), "c3")
			if len(rs) > 0 {
				t.Errorf("not collected: %v", rs)
			}
		})
	}
}
