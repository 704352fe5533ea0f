// Package publish publishes multinet's network in the runtime's directory, in front of
// the cluster network, and takes over its containers. It is package autoconf with the
// settings that multinet and multinetd share.
package publish

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/metacni/metacni/delegate/plugin"
	"github.com/metacni/metacni/examples/internal/program"
	multinet "github.com/metacni/metacni/examples/multinet/plugin"
	"github.com/metacni/metacni/netconf"
	"github.com/metacni/metacni/netconf/autoconf"
)

const (
	// ConfDir is where runtimes look for networks.
	ConfDir = "/etc/cni/net.d"

	// Output is the name of the published file, without its extension. multinet
	// and multinetd have the same, so that one can replace the other.
	Output = "00-multinet"

	// Network is the name of the published network. Records are kept under it,
	// so it must not change with the primary network.
	Network = "multinet"
)

// PlainName reports whether name can be that of a file in a directory, and not a path.
func PlainName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\\\x00")
}

// Manager returns a Manager that publishes a network with the plugin template as the
// file output, in front of the first network in dir that a pod can use.
//
// The lock is in the same directory as output, because all programs see that, in whichever
// container they run. Runtimes do not read its sub-directory.
func Manager(dir, output string, template netconf.Plugin) *autoconf.Manager {
	return &autoconf.Manager{
		Dir: dir, Output: output, Template: template, Accept: func(f netconf.File) bool { // a network of loopback only is none
			return slices.ContainsFunc(f.Network.Plugins(), func(p netconf.Plugin) bool { return p.Type() != "loopback" })
		},
		Lock: filepath.Join(filepath.Dir(output), ".multinet", "lock"), OwnTypes: multinet.OwnTypes(),
	}
}

// Publish has m publish once. It waits a few seconds for another program that has the lock for a
// moment, as another install does.
func Publish(ctx context.Context, m *autoconf.Manager) error { return unlocked(ctx, m.Publish) }

// unlocked calls do until no other program has the lock, or for too long: a daemon has it as long as it
// runs. The error says who has it.
func unlocked(ctx context.Context, do func() error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		if err := do(); !errors.Is(err, autoconf.ErrLocked) || !program.Pause(ctx, patience/100) {
			return err
		}
	}
}

// patience is how long a command waits for the lock.
const patience = 5 * time.Second

// Uninstall removes what m has published, and its lock. It waits as [Publish] does.
func Uninstall(ctx context.Context, m *autoconf.Manager) error {
	if _, err := os.Stat(filepath.Dir(m.Output)); errors.Is(err, fs.ErrNotExist) {
		return nil // there is no place for the lock either
	}
	if err := unlocked(ctx, m.Uninstall); err != nil {
		return err
	}
	// A program that has locked it meanwhile notices this and creates another.
	if err := os.Remove(m.Lock); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	_ = os.Remove(filepath.Dir(m.Lock)) // fails if it holds another file
	return nil
}

// Annotations returns an edit that makes the runtime pass on the annotations of pods,
// unless the template sets that capability itself.
func Annotations() netconf.Edit {
	return netconf.In("capabilities", netconf.Default(plugin.PodAnnotationsCapability, true))
}

// RuntimeConfDir returns an edit that names the directory in which the runtime looks for networks,
// unless that is the usual one or the template names one.
func RuntimeConfDir(dir string) netconf.Edit {
	if dir == ConfDir {
		return func(map[string]json.RawMessage) error { return nil }
	}
	return netconf.Default("runtimeConfDir", dir)
}

// LogState logs the state of the published network.
func LogState(ctx context.Context, log *slog.Logger, s autoconf.State) {
	level, attrs := slog.LevelInfo, []slog.Attr{}
	if s.Published != "" {
		attrs = append(attrs, slog.String("published", s.Published), slog.String("network", s.Network), slog.String("primary", s.Primary))
	}
	if s.Degraded != nil {
		level = slog.LevelWarn
		attrs = append(attrs, slog.String("error", s.Degraded.Error()))
	}
	for _, skipped := range s.Skipped {
		attrs = append(attrs, slog.String("passed_over", skipped.Error()))
	}
	log.LogAttrs(ctx, level, "network", attrs...)
}
