package lifecycle

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"

	nodetest "github.com/metacni/metacni/internal/test/node"
	"github.com/metacni/metacni/scratch"
)

// situations returns the records in a file of testdata/formats, by their names. Each is the text
// that a release has written when it was killed there, or when plugins failed.
func situations(t *testing.T, file string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", "formats", file))
	nodetest.OK(t, err)
	all := make(map[string]string)
	for part := range strings.SplitSeq(strings.TrimPrefix(string(text), "-- "), "\n-- ") {
		name, lines, _ := strings.Cut(part, " --\n")
		all[name] = lines
	}
	return all
}

// Records of every release that wrote version 2 are read, and mean what they meant:
//
//   - half.txt: an entry that is half done has "half" (commit 30411940, 2026-11-22). It may be being
//     attached, or undone, or detached; whether it was ever attached is not recorded.
//   - new.txt: "half", and "new" if the entry never was attached (until 2026-11-25).
//   - state.txt: the entry has a "state" (since then).
//
// Without "new", an entry that no plugin or not the last one has completed was never attached,
// unless it was adopted. One that all plugins have completed is taken for attached, as that
// release itself took it: its DEL must succeed.
func TestRecordsOfEarlierReleasesAreRead(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]struct{ state, half, del string }{
		"adding":                {"planned: eth0 planned, net0 planned", "", "DEL macvlan net0, DEL tuning eth0, DEL bridge eth0"},
		"add failed":            {"leftover: eth0 leftover, net0 leftover", "deleting: eth0 deleting, net0 deleting", "DEL bridge eth0"},
		"added":                 {"added: eth0 added, net0 added", "", "DEL macvlan net0, DEL tuning eth0, DEL bridge eth0"},
		"deleting":              {"deleting: eth0 deleting, net0 deleting", "", "DEL bridge eth0"},
		"attaching":             {"partial: eth0 added, net0 added, hot0 planned", "", "DEL tuning hot0, DEL ipvlan hot0, DEL macvlan net0, DEL tuning eth0, DEL bridge eth0"},
		"attaching, unfinished": {"partial: eth0 added, net0 added, hot0 planned", "", "DEL tuning hot0, DEL ipvlan hot0, DEL macvlan net0, DEL tuning eth0, DEL bridge eth0"},
		"attaching failed":      {"partial: eth0 added, net0 added, hot0 leftover", "", "DEL ipvlan hot0, DEL macvlan net0, DEL tuning eth0, DEL bridge eth0"},
		"attached, refused":     {"partial: eth0 added, net0 added, hot0 leftover", "partial: eth0 added, net0 added, hot0 deleting", "DEL ipvlan hot0, DEL macvlan net0, DEL tuning eth0, DEL bridge eth0"},
		"detaching":             {"partial: eth0 added, net0 added, hot0 deleting", "", "DEL ipvlan hot0, DEL macvlan net0, DEL tuning eth0, DEL bridge eth0"},
		"del failed":            {"deleting: eth0 deleting, net0 deleting, hot0 deleting", "", "DEL ipvlan hot0, DEL bridge eth0"},
		"adopted":               {"added: eth0 added, net0 added", "", "DEL macvlan net0, DEL bridge eth0"},
		"adopted, detaching":    {"partial: eth0 added, net0 deleting", "", "DEL macvlan net0, DEL bridge eth0"},
	} {
		for _, form := range []string{"half", "new", "state"} {
			t.Run(name+"/"+form, func(t *testing.T) {
				t.Parallel()
				n := newNode(t)
				nodetest.OK(t, os.MkdirAll(n.Dir, 0o700))
				nodetest.OK(t, os.WriteFile(n.recordFile(eth0), []byte(situations(t, form+".txt")[name]), 0o600))
				r, err := n.store().Get(eth0)
				nodetest.OK(t, err)
				wanted := want.state
				if form == "half" {
					wanted = cmp.Or(want.half, want.state)
				}
				nodetest.Equal(t, "read", meaning(r), wanted)
				read := n.record(r)
				for i, e := range r.Value.Delegates {
					nodetest.Equal(t, e.IfName+" is whole", read.Whole(i), r.State.Attached() && e.state(r.State) == scratch.Added)
				}

				n.del(eth0)
				n.WantTrace(strings.Split(want.del, ", ")...)
				n.wantNothing()
			})
		}
	}
}

// meaning returns the state of r, and of each of its attachments.
func meaning(r scratch.Record[record]) string {
	var all []string
	for _, e := range r.Value.Delegates {
		all = append(all, e.IfName+" "+string(e.state(r.State)))
	}
	return string(r.State) + ": " + strings.Join(all, ", ")
}

// A state that this release does not know says nothing that it could act on: the record is
// damaged, and no other is.
func TestUnknownStateHarmsItsOwnRecord(t *testing.T) {
	t.Parallel()
	n := newNode(t)
	n.add(key("c2", "eth0"))
	for name, text := range situations(t, "state.txt") {
		lines := strings.Split(strings.TrimSpace(text), "\n")
		whole := lines[len(lines)-1]
		later := strings.Replace(whole, `"state":"deleting"}`, `"state":"resting"}`, 1)
		if name != "detaching" && name != "adopted, detaching" {
			continue
		}
		sum := sha256.Sum256([]byte(later[17:]))
		nodetest.OK(t, os.WriteFile(n.recordFile(eth0), []byte(hex.EncodeToString(sum[:8])+later[16:]+"\n"), 0o600))
		n.wantRecords("c1/eth0 damaged", "c2/eth0 added")
		nodetest.Fails(t, n.Del(t.Context(), eth0, Removal{}), 5, `unknown state "resting"`)
		n.wantRecords("c1/eth0 damaged", "c2/eth0 added")
		nodetest.OK(t, n.forget(eth0))
	}
	n.del(key("c2", "eth0"))
	n.wantNothing()
}
