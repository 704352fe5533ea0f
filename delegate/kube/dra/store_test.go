package dra

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/metacni/metacni/internal/nodetest"
	"github.com/metacni/metacni/netconf/nad"
	"github.com/metacni/metacni/status"
)

func stored(uid, pod string) Claim {
	const config = "{ \"b\":1.0,\n\"a\":1e3,\"c\":\"\\u00e9\" }"
	return Claim{
		Ref: Ref{uid, "blue", "name-" + uid, pod}, PodName: "web",
		Networks: []Network{{
			Claim: nad.Claim{UID: uid, Request: "net", Pool: "node1", Device: "storage", Share: uid}, Opaque: []byte(cni(`,"config":` + config)), OfClass: true, Config: config,
		}},
	}
}

func newStore(t *testing.T, claims ...Claim) store {
	t.Helper()
	s := store{dir: filepath.Join(t.TempDir(), "state", "claims")}
	for _, c := range claims {
		nodetest.OK(t, s.put(c))
	}
	return s
}

func TestClaimsAreFoundByThePod(t *testing.T) {
	t.Parallel()
	a, b, c := stored("a", "pod1"), stored("b", "pod1"), stored("c", "pod2")
	s := newStore(t, c, b, a)
	for pod, want := range map[string][]Claim{"pod1": {a, b}, "pod2": {c}, "pod": nil, "": nil} {
		got, err := s.pod(pod)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%q: %s %v", pod, diff, err)
		}
	}
	got, damaged, err := s.all()
	if diff := cmp.Diff([]Claim{a, b, c}, got); diff != "" || damaged != nil || err != nil {
		t.Error(diff, damaged, err)
	}
	if got, err := (store{dir: filepath.Join(t.TempDir(), "none")}).pod("pod1"); got != nil || err != nil {
		t.Errorf("without a directory: %v, %v", got, err)
	}
}

func TestAClaimIsReplacedAndRemoved(t *testing.T) {
	t.Parallel()
	a := stored("a", "pod1")
	s := newStore(t, a)
	a.Networks[0].Opaque, a.Networks[0].Config = []byte(cni(`,"config":{}`)), "{}"
	nodetest.OK(t, s.put(a))
	if got, err := s.get(a.Ref); cmp.Diff(a, got) != "" || err != nil {
		t.Error(got, err)
	}
	for range 2 {
		nodetest.OK(t, s.remove(a.Ref))
	}
	if _, err := s.get(a.Ref); !errors.Is(err, errNotPrepared) || status.Code(err) != 11 {
		t.Error(err)
	}
	if entries, err := os.ReadDir(s.dir); len(entries) > 0 || err != nil {
		t.Error(entries, err)
	}
}

// Whatever happens to the file of a claim, the others are as they were, and the claim is never
// read as something else.
func TestDamageIsThatOfOneClaim(t *testing.T) {
	t.Parallel()
	a, b := stored("a", "pod1"), stored("b", "pod2")
	whole, err := encode(a)
	nodetest.OK(t, err)
	of := func(version string) []byte {
		text := `{"version":` + version + `,"claim":{}}`
		return []byte(checksum([]byte(text)) + "\n" + text)
	}
	other, err := encode(b)
	nodetest.OK(t, err)
	type damage = func(t *testing.T, path string)
	write := func(data []byte) damage {
		return func(t *testing.T, path string) {
			t.Helper()
			nodetest.OK(t, os.WriteFile(path, data, 0o600))
		}
	}
	cases := map[string]damage{
		"empty":               write(nil),
		"a later version":     write(of("3")),
		"an earlier version":  write(of("1")),
		"that of another one": write(other),
		"too large":           write(make([]byte, maxRecord+1)),
		"a directory": func(t *testing.T, path string) {
			t.Helper()
			nodetest.OK(t, errors.Join(os.Remove(path), os.Mkdir(path, 0o700)))
		},
		"a link": func(t *testing.T, path string) {
			t.Helper()
			target := filepath.Join(t.TempDir(), "x")
			nodetest.OK(t, errors.Join(os.Rename(path, target), os.Symlink(target, path)))
		},
	}
	for _, n := range []int{1, 63, 64, 65, len(whole) / 2, len(whole) - 1} {
		cases[fmt.Sprintf("%d bytes long", n)] = write(whole[:n])
	}
	for _, n := range []int{0, 64, 65, len(whole) / 2, len(whole) - 1} {
		flipped := append([]byte{}, whole...)
		flipped[n] ^= 1
		cases[fmt.Sprintf("another byte at %d", n)] = write(flipped)
	}
	for name, do := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newStore(t, a, b)
			do(t, filepath.Join(s.dir, fileName(a.Ref)))
			if got, err := s.pod("pod1"); !errors.Is(err, errDamaged) || got != nil {
				t.Errorf("got %v, %v", got, err)
			}
			if got, err := s.pod("pod2"); cmp.Diff([]Claim{b}, got) != "" || err != nil {
				t.Errorf("the other: %v, %v", got, err)
			}
			got, damaged, err := s.all()
			if cmp.Diff([]Claim{b}, got) != "" || len(damaged) != 1 || err != nil {
				t.Errorf("all: %v, %v, %v", got, damaged, err)
			}
			if refs, err := s.find("a"); cmp.Diff([]Ref{{UID: "a", Pod: "pod1"}}, refs) != "" || err != nil {
				t.Errorf("found %v, %v", refs, err)
			}
		})
	}
}

func TestOtherFilesAreIgnored(t *testing.T) {
	t.Parallel()
	a := stored("a", "pod1")
	s := newStore(t, a)
	for _, name := range []string{"x", "_", "pod1_", "_a", ".tmp-1", "pod1_a.json", "pod1_a_b"} {
		nodetest.OK(t, os.WriteFile(filepath.Join(s.dir, name), nil, 0o600))
	}
	if got, damaged, err := s.all(); cmp.Diff([]Claim{a}, got) != "" || damaged != nil || err != nil {
		t.Error(got, damaged, err)
	}
	nodetest.OK(t, s.clean(time.Now().Add(-time.Hour)))
	if _, err := os.Lstat(filepath.Join(s.dir, ".tmp-1")); err != nil {
		t.Error(err)
	}
	nodetest.OK(t, s.clean(time.Now().Add(time.Hour)))
	if _, err := os.Lstat(filepath.Join(s.dir, ".tmp-1")); !errors.Is(err, os.ErrNotExist) {
		t.Error("the temporary file is still there")
	}
	if _, err := os.Lstat(filepath.Join(s.dir, "x")); err != nil {
		t.Error(err)
	}
}

// Names of files are names and nothing else, even if an API server gave a strange UID.
func TestUIDsAreNoPaths(t *testing.T) {
	t.Parallel()
	for uid, want := range map[string]bool{
		"0d3f8a2e-1111-4222-8333-444455556666": true, "a": true, "": false, "a/b": false, "..": false, "a_b": false, "é": false, "a\x00": false,
		string(make([]byte, 65)): false,
	} {
		nodetest.Equal(t, uid, isUID(uid), want)
	}
}
