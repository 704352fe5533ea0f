package power

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// A scenario is what a program does on the disk, and what it can rely on after a crash.
type scenario struct {
	name string
	// grows says that it only makes files. Without a journal, a file that is replaced or
	// removed may be lost with what comes in its place.
	grows bool
	// run makes promises: what is true from that moment on, also after a loss of power.
	run func(w *work) error
	// holds looks at what is left.
	holds func(l *left) error
}

func scenarios() []scenario {
	return []scenario{
		{"records", true, add, recordsHold},
		{"changed records", false, attachAndDelete, recordsHold},
		{"leftovers", false, failToUndo, recordsHold},
		{"adoption", false, adoptAndGiveBack, adoptionsHold},
		{"claims", false, keepClaims, claimsHold},
		{"queue", false, queueAndReplay, queueHolds},
		{"reservations", true, reserveTypes, reservationsHold},
		{"configuration", false, publishConfiguration, configurationHolds},
		{"program", false, installPrograms, programHolds},
	}
}

func scenarioOf(name string) scenario {
	all := scenarios()
	return all[slices.IndexFunc(all, func(s scenario) bool { return s.name == name })]
}

// work is what a scenario runs in.
type work struct {
	context.Context
	*rig
	dir string // on the disk
}

// path returns the path of a file on the disk.
func (w *work) path(name string) string { return filepath.Join(w.dir, name) }

// sync makes all that is on the disk survive.
func (w *work) sync() error { return syncAll(w.dir) }

func syncAll(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(unix.Syncfs(int(d.Fd())), d.Close())
}

// promise says that something is true from now on, and waits until that is noted.
func (w *work) promise(format string, a ...any) { w.ask(fmt.Sprintf(format, a...)) }

// left is the disk after a crash.
type left struct {
	context.Context
	dir  string
	temp string // the rig's

	made []string
}

func (l *left) path(name string) string { return filepath.Join(l.dir, name) }

// promised returns what promises of that kind were about.
func (l *left) promised(kind string) []string {
	var all []string
	for _, p := range l.made {
		if what, ok := strings.CutPrefix(p, kind+" "); ok {
			all = append(all, what)
		}
	}
	return all
}

// current fails unless content is the version that was promised last, of versions in order, or
// the next.
func (l *left) current(kind, content string, versions ...string) error {
	last := len(l.promised(kind))
	if slices.Contains(versions[last:min(last+2, len(versions))], content) {
		return nil
	}
	return fmt.Errorf("after version %d: neither this nor the next: %q", last, content)
}

// read returns the content of a file, or "" if there is none.
func (l *left) read(name string) (string, error) {
	data, err := os.ReadFile(l.path(name))
	if errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return string(data), err
}
