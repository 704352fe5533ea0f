package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// A damage is one way to change a file.
type damage struct {
	name string
	data []byte
}

// damages returns the file cut off at every length, and with every byte
// flipped.
func damages(data []byte) (list []damage) {
	for n := range data {
		list = append(list, damage{fmt.Sprintf("cut at %d", n), data[:n]})
	}
	for i := range data {
		flipped := bytes.Clone(data)
		flipped[i] ^= 0xff
		list = append(list, damage{fmt.Sprintf("byte %d flipped", i), flipped})
	}
	return list
}

// TestEveryDamageIsContained damages a plugin's record and runs commands
// through the executable, for a sample of the damages. No command panics. A DEL
// that succeeds has removed everything. One that fails has code 5, runs
// nothing, and keeps the record until an operator forgets it. Other
// attachments, of this container or of others, are not affected.
func TestEveryDamageIsContained(t *testing.T) {
	for _, s := range subjects() {
		t.Run(s.name, func(t *testing.T) {
			w := newWorld(t)
			p, other := w.pod(s.conf(w)), w.pod(s.conf(w))
			w.ok("ADD", other)
			w.ok("ADD", p)
			file := w.recordFile(p, s.state)
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			all := damages(data)
			step := len(all) / 60
			if !*long {
				step = len(all) / 10
			}
			for i := 0; i < len(all); i += step {
				w.damaged(p, s, file, all[i], data)
			}
			same(t, "the other's", len(s.fakes), len(w.leaked(other)))
			w.ok("CHECK", other)
			w.ok("DEL", other)
			w.ok("DEL", p)
			w.nothingLeft()
			w.figures(s.name+": damaged record, through the executable", (len(all)+step-1)/step)
		})
	}
}

func (w *world) recordFile(p *pod, state string) string {
	w.t.Helper()
	for _, name := range w.list(w.file(state)) {
		if p.isRecord(name) {
			return w.file(state, name)
		}
	}
	w.t.Fatalf("%s has no record", p.id)
	return ""
}

// damaged tests one damage of p's record, whose content is data. Afterwards p
// is attached and recorded again.
func (w *world) damaged(p *pod, s subject, file string, d damage, data []byte) {
	w.t.Helper()
	if err := os.WriteFile(file, d.data, 0o600); err != nil {
		w.t.Fatal(err)
	}
	w.forget()
	a := w.call("DEL", p, withoutNetNS)
	switch a.code {
	case 0:
		// Possible only if a complete line is left.
		w.trace(s.calls("DEL")...)
		w.clean(p, s.state)
		w.ok("ADD", p)
	default:
		w.failed(a, 5)
		w.trace()
		same(w.t, d.name+": attached", len(s.fakes), len(w.leaked(p)))
		for _, command := range []string{"DEL", "CHECK", "ADD"} {
			w.fails(5, command, p, nil)
		}
		w.trace()
		if now, err := os.ReadFile(file); err != nil || !bytes.Equal(now, d.data) {
			w.t.Errorf("%s: DEL changed the record: %v", d.name, err)
		}
		if err := os.WriteFile(file, data, 0o600); err != nil {
			w.t.Fatal(err)
		}
	}
	if w.t.Failed() {
		w.t.Fatal(d.name)
	}
}

// TestEveryDamageIsContainedInProcess tests every damage through package
// lifecycle, after an ADD and after a DEL that failed, beside a second
// attachment of the container and one of another container.
func TestEveryDamageIsContainedInProcess(t *testing.T) {
	for _, verb := range []string{"ADD", "DEL"} {
		t.Run("after "+verb, func(t *testing.T) {
			t.Parallel()
			n := newNode(t)
			victim := scratch.Key{Network: "n", ContainerID: "c1", IfName: "eth0"}
			others := []scratch.Key{{Network: "n", ContainerID: "c1", IfName: "eth1"}, {Network: "n", ContainerID: "c2", IfName: "eth0"}}
			for _, k := range append(others, victim) {
				n.add(k)
			}
			if verb == "DEL" {
				n.broken = true
				if err := n.Del(t.Context(), lifecycle.Removal{Key: victim}); err == nil {
					t.Fatal("DEL succeeds though the plugin fails")
				}
				n.broken = false
			}
			file := filepath.Join(n.Dir, "c1@n@eth0.json")
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			same(t, "states in the record", map[string]int{"ADD": 3, "DEL": 5}[verb], bytes.Count(data, []byte(`"state"`)))
			intact, set := 0, 0
			all := damages(data)
			if !*long {
				all = slices.DeleteFunc(all, func(damage) bool { return rand.IntN(10) > 0 })
			}
			for _, d := range all {
				if err := os.WriteFile(file, d.data, 0o600); err != nil {
					t.Fatal(err)
				}
				switch err := n.Del(t.Context(), lifecycle.Removal{Key: victim}); {
				case err == nil:
					intact++
					n.lives(others...)
					n.add(victim)
				case errors.Is(err, scratch.ErrCorrupt):
					set++
					n.lives(append(others, victim)...)
					if err := n.Del(t.Context(), lifecycle.Removal{Key: victim}); !errors.Is(err, scratch.ErrCorrupt) {
						t.Fatalf("%s: second DEL: %v", d.name, err)
					}
					store := scratch.Store[json.RawMessage]{Dir: n.Dir}
					l, err := store.Lock(t.Context(), victim.ContainerID)
					if err != nil {
						t.Fatal(err)
					}
					if err := errors.Join(store.Forget(l, victim), l.Unlock()); err != nil {
						t.Fatal(err)
					}
				default:
					t.Fatalf("%s: %v", d.name, err)
				}
				if t.Failed() {
					t.Fatal(d.name)
				}
			}
			for _, k := range others {
				if err := n.Check(t.Context(), k); err != nil {
					t.Error(err)
				}
			}
			if intact == 0 || set == 0 {
				t.Errorf("%d intact, %d set aside", intact, set)
			}
			t.Logf("figures: damaged record after %s, in process: %d trials, %d with a line left", verb, len(all), intact)
		})
	}
}

// A node is a lifecycle with plugins in memory.
type node struct {
	*lifecycle.Manager
	t      *testing.T
	exec   *delegatetest.Exec
	broken bool // whether DEL fails
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{t: t, exec: &delegatetest.Exec{}}
	works := delegatetest.Result(nil)
	n.exec.Plugins = map[string]delegatetest.Plugin{"fake": func(ctx context.Context, c delegatetest.Call) ([]byte, error) {
		if c.Command == "DEL" && n.broken {
			return nil, types.NewError(111, "broken", "")
		}
		return works(ctx, c)
	}}
	n.Manager = &lifecycle.Manager{Dir: t.TempDir(), Invoker: &delegate.Invoker{Exec: n.exec, Path: []string{"/"}}}
	return n
}

// add attaches k to two networks.
func (n *node) add(k scratch.Key) {
	n.t.Helper()
	if _, err := os.Stat(filepath.Join(n.Dir, k.ContainerID+"@"+k.Network+"@"+k.IfName+".json")); !errors.Is(err, fs.ErrNotExist) {
		n.t.Fatalf("%v is recorded: %v", k, err)
	}
	var plan []delegate.Attachment
	for _, suffix := range []string{"", "b"} {
		conf, err := netconf.Parse([]byte(`{"cniVersion":"1.0.0","name":"d` + suffix + `","plugins":[{"type":"fake"}]}`))
		if err != nil {
			n.t.Fatal(err)
		}
		plan = append(plan, delegate.Attachment{Network: conf, ContainerID: k.ContainerID, IfName: k.IfName + suffix})
	}
	if _, err := n.Add(n.t.Context(), k, lifecycle.Transaction{Plan: lifecycle.Plan(plan...)}); err != nil {
		n.t.Fatal(err)
	}
}

// lives fails the test unless exactly these attachments exist.
func (n *node) lives(keys ...scratch.Key) {
	n.t.Helper()
	same(n.t, "attached", 2*len(keys), len(n.exec.Live()))
	for _, k := range keys {
		if !slices.ContainsFunc(n.exec.Live(), func(s string) bool {
			return strings.Contains(s, k.ContainerID) && strings.Contains(s, k.IfName)
		}) {
			n.t.Errorf("%v is no longer attached: %v", k, n.exec.Live())
		}
	}
}
