package adopt

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/scratch"
)

// GiveBack returns a callback for [lifecycle.Manager.Release]. The callback writes
// the attachment that is left into libcni's cache in each of dirs, as libcni would
// have written it. A program that uses the cache then has the result and the
// arguments of the ADD for its DEL. The callback removes the cache's entry of the
// meta-plugin's own network, which nobody will delete any more. It makes missing
// directories. When it returns nil, the entries survive a loss of power.
func GiveBack(dirs ...string) func(context.Context, lifecycle.Record) error {
	return func(_ context.Context, r lifecycle.Record) error {
		i := own(r)
		if i < 0 {
			return nil // nothing is left
		}
		e, err := entryOf(r.Attached[i])
		if err != nil {
			return err
		}
		data, err := json.Marshal(e)
		if err != nil {
			return err
		}
		for _, dir := range dirs {
			if err := os.MkdirAll(cache(dir), 0o700); err != nil {
				return err
			}
			if err := scratch.WriteFile(filepath.Join(cache(dir), e.file()), data); err != nil {
				return err
			}
			if r.Key.Network == e.NetworkName {
				continue
			}
			if err := forget(dir, r.Key); err != nil {
				return err
			}
		}
		return nil
	}
}

// GiveBackToMultus is [GiveBack] for Multus, whose cniDir is dir. The callback also
// writes Multus's state of the container, with the one network that is left. In the
// cache directories of the runtime it writes nothing, because the runtime deletes
// Multus's network, not the one that is left; it removes the entry of the
// meta-plugin's own network.
func GiveBackToMultus(dir string, runtime ...string) func(context.Context, lifecycle.Record) error {
	cached := GiveBack(dir)
	return func(ctx context.Context, r lifecycle.Record) error {
		i := own(r)
		if i < 0 {
			return nil // nothing is left
		}
		for _, dir := range runtime { // first, because dir may be one of them
			if err := forget(dir, r.Key); err != nil {
				return err
			}
		}
		if err := cached(ctx, r); err != nil {
			return err
		}
		network := r.Attached[i].Network
		config, err := network.MarshalJSON()
		if err != nil {
			return err
		}
		data, err := json.Marshal([]any{map[string]any{
			"Conf": struct{}{}, "ConfList": json.RawMessage(config), "Name": network.Name(), "Bytes": config,
		}})
		if err != nil {
			return err
		}
		return scratch.WriteFile(filepath.Join(dir, r.Key.ContainerID), data)
	}
}

// forget removes libcni's entry of the attachment k from its cache in dir.
func forget(dir string, k scratch.Key) error {
	e := entry{NetworkName: k.Network, ContainerID: k.ContainerID, IfName: k.IfName}
	if err := os.Remove(filepath.Join(cache(dir), e.file())); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// own is the index of the attachment that is the record's own, or -1.
func own(r lifecycle.Record) int {
	return slices.IndexFunc(r.Attached, func(a delegate.Attached) bool { return a.IfName == r.Key.IfName })
}

// entryOf is what libcni would cache of a.
func entryOf(a delegate.Attached) (*entry, error) {
	config, err := a.Network.MarshalJSON()
	if err != nil {
		return nil, err
	}
	var args [][2]string
	for pair := range strings.SplitSeq(a.Args, ";") {
		if key, value, _ := strings.Cut(pair, "="); key != "" {
			args = append(args, [2]string{key, value})
		}
	}
	return &entry{
		Kind: kind, ContainerID: a.ContainerID, Config: config, IfName: a.IfName, NetworkName: a.Network.Name(),
		NetNS: a.NetNS, Args: args, CapabilityArgs: a.CapabilityArgs, Result: a.Result,
	}, nil
}
