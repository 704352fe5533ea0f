package power

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/adopt"
	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/scratch"
)

// stateDir is made by the Manager.
const stateDir = "cni/state"

// conf is the configuration of a network. That of "large" fills several blocks.
func conf(name string) string {
	filler := ""
	if name == "large" {
		filler = strings.Repeat("0123456789abcdef", 600)
	}
	return fmt.Sprintf(`{"cniVersion":"1.1.0","name":%q,"plugins":[{"filler":%q,"type":%q}]}`, name, filler, name)
}

func network(name string) netconf.Network {
	n, err := netconf.Parse([]byte(conf(name)))
	if err != nil {
		panic(err)
	}
	return n
}

// attach returns an attachment, of a container in no namespace that exists.
func attach(name, container, ifname string) delegate.Attachment {
	return delegate.Attachment{Network: network(name), ContainerID: container, IfName: ifname}
}

func keyOf(container string) scratch.Key {
	return scratch.Key{Network: "multi", ContainerID: container, IfName: "eth0"}
}

// manager keeps records in dir. Its plugins tell what they do: "ran", before ADD does
// anything, and "undone", when DEL has done everything. Their VERBs in failing fail.
func manager(dir string, tell func(string, ...any), failing ...string) *lifecycle.Manager {
	exec := &delegatetest.Exec{Plugins: make(map[string]delegatetest.Fake)}
	works := delegatetest.Result(&types100.Result{CNIVersion: "1.0.0", Interfaces: []*types100.Interface{{Name: "eth0", Sandbox: "/run/netns/x"}}})
	for _, typ := range []string{"pods", "large", "hot"} {
		exec.Plugins[typ] = func(ctx context.Context, c delegatetest.Invocation) ([]byte, error) {
			what := fmt.Sprintf("%s %s %s", typ, c.ContainerID, c.IfName)
			if c.Command == "ADD" {
				tell("ran %s", what)
			}
			if slices.Contains(failing, c.Command+" "+typ) {
				return nil, types.NewError(100, "broken", "")
			}
			if c.Command == "DEL" {
				tell("undone %s", what)
			}
			return works(ctx, c)
		}
	}
	return &lifecycle.Manager{Dir: dir, Invoker: &delegate.Invoker{Exec: exec}}
}

// add attaches containers.
func add(w *work) error {
	m := manager(w.path(stateDir), w.promise)
	for _, id := range []string{"c1", "c2"} {
		_, err := m.Add(w, keyOf(id), lifecycle.Transaction{Plan: lifecycle.Plan(attach("pods", id, "eth0"), attach("large", id, "net1"))})
		if err != nil {
			return err
		}
	}
	return nil
}

// attachAndDelete changes the record of a running container, and makes the container again.
func attachAndDelete(w *work) error {
	m, k := manager(w.path(stateDir), w.promise), keyOf("c1")
	for range 2 {
		if _, err := m.Add(w, k, lifecycle.Transaction{Plan: lifecycle.Plan(attach("pods", "c1", "eth0"))}); err != nil {
			return err
		}
		for _, name := range []string{"large", "hot"} {
			if _, err := m.Attach(w, k, lifecycle.Transaction{Plan: lifecycle.Plan(attach(name, "c1", name))}); err != nil {
				return err
			}
		}
		if err := errors.Join(m.Detach(w, k, "large"), m.Del(w, k, lifecycle.DelRequest{})); err != nil {
			return err
		}
	}
	return nil
}

// failToUndo leaves what plugins cannot undo.
func failToUndo(w *work) error {
	m := manager(w.path(stateDir), w.promise, "ADD large", "DEL pods")
	for _, id := range []string{"c1", "c2"} {
		_, err := m.Add(w, keyOf(id), lifecycle.Transaction{Plan: lifecycle.Plan(attach("pods", id, "eth0"), attach("large", id, "net1"))})
		if !errors.Is(err, delegate.ErrNotUndone) {
			return fmt.Errorf("ADD whose undo fails: %w", err)
		}
	}
	m = manager(w.path(stateDir), w.promise, "DEL pods")
	_ = m.Del(w, keyOf("c1"), lifecycle.DelRequest{}) // which keeps the record
	// An ADD that finds what it cannot remove.
	_, err := m.Add(w, keyOf("c2"), lifecycle.Transaction{Plan: lifecycle.Plan(attach("hot", "c2", "eth0"))})
	return err
}

func recordsHold(l *left) error { return l.allDeleted(l.attached()) }

// attached is what plugins have done, and not undone.
func (l *left) attached() []string {
	var all []string
	for _, p := range l.made {
		what, ran := strings.CutPrefix(p, "ran ")
		if undone, ok := strings.CutPrefix(p, "undone "); ok {
			all = slices.DeleteFunc(all, func(a string) bool { return a == undone })
		} else if ran && !slices.Contains(all, what) {
			all = append(all, what)
		}
	}
	return all
}

// allDeleted reads the records: they are whole, and have what is attached. Then it deletes
// all of them: the plugins of what was attached run, and nothing is left.
func (l *left) allDeleted(attached []string) error {
	var recorded, undone []string
	m := manager(l.path(stateDir), func(_ string, what ...any) { undone = append(undone, fmt.Sprint(what...)) })
	for r, err := range m.Records(l) {
		if err != nil {
			return fmt.Errorf("record that cannot be read: %w", err)
		}
		for _, a := range slices.Concat(r.Attached, r.Leftovers) {
			name := a.Network.Name()
			got, err := a.Network.MarshalJSON()
			if err != nil || string(got) != conf(name) {
				return fmt.Errorf("neither old nor new: %s, %w", got, err)
			}
			recorded = append(recorded, fmt.Sprintf("%s %s %s", name, a.ContainerID, a.IfName))
		}
	}
	for _, a := range attached {
		if !slices.Contains(recorded, a) {
			return fmt.Errorf("no record of %s, which ran; recorded: %q", a, recorded)
		}
	}
	for _, id := range []string{"c1", "c2"} {
		if err := m.Del(l, keyOf(id), lifecycle.DelRequest{}); err != nil {
			return err
		}
	}
	for _, a := range attached {
		if !slices.Contains(undone, a) {
			return fmt.Errorf("DEL did not remove %s, only %q", a, undone)
		}
	}
	for r, err := range m.Records(l) {
		return fmt.Errorf("left after DEL: %v, %w", r.Key, err)
	}
	return nil
}

// adoptAndGiveBack takes over what a runtime has attached, and gives it back.
func adoptAndGiveBack(w *work) error {
	m := manager(w.path(stateDir), w.promise)
	for _, id := range []string{"c1", "c2"} {
		a := attach("pods", id, "eth0")
		a.NetNS = "/proc/self/ns/net" // it is there, so that the container is not gone
		done, err := m.Adopt(w, lifecycle.Adoption{Key: keyOf(id), Attached: []delegate.Attached{{Attachment: a, Added: true}}})
		if !done || err != nil {
			return fmt.Errorf("adopted: %t, %w", done, err)
		}
		w.promise("ran pods %s eth0", id)
	}
	if err := m.Release(w, keyOf("c1"), adopt.GiveBack("", w.path("cache"))); err != nil {
		return err
	}
	w.promise("given pods c1 eth0")
	return m.Del(w, keyOf("c2"), lifecycle.DelRequest{})
}

func adoptionsHold(l *left) error {
	var given []string // in the runtime's cache
	for a, err := range (adopt.Node{Network: "multi", Primary: []string{"pods"}, Own: []string{"meta"}, CacheDir: l.path("cache")}).Attachments() {
		if err != nil {
			return err
		}
		given = append(given, fmt.Sprintf("pods %s eth0", a.Key.ContainerID))
	}
	for _, g := range l.promised("given") {
		if !slices.Contains(given, g) {
			return fmt.Errorf("%s was given back, and the runtime has %q", g, given)
		}
	}
	return l.allDeleted(slices.DeleteFunc(l.attached(), func(a string) bool { return slices.Contains(given, a) }))
}

// claims are kept in the directory of a driver of delegate/kube/dra.
func claims(dir string) scratch.Store[string] { return scratch.Store[string]{Dir: dir} }

// keepClaims keeps a claim, another version of it, and forgets it.
func keepClaims(w *work) error {
	s, k := claims(w.path("claims")), scratch.Key{Network: "uid", ContainerID: "pod", IfName: "claim"}
	l, err := s.Lock(w, k.ContainerID)
	if err != nil {
		return err
	}
	for _, value := range []string{conf("pods"), conf("large")} {
		if err := s.Put(l, scratch.Record[string]{Key: k, State: scratch.Added, Value: value}); err != nil {
			return err
		}
		w.promise("kept %s", value)
	}
	return errors.Join(s.Delete(l, k), l.Unlock())
}

func claimsHold(l *left) error {
	content := ""
	for r, err := range claims(l.path("claims")).List(l) {
		if err != nil {
			return err
		}
		content = r.Value
	}
	return l.current("kept", content, "", conf("pods"), conf("large"), "")
}
