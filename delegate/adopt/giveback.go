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
//
// If multusDir is not empty, it is the cniDir of Multus, to which the container is
// given back: the attachment is written to the cache there, and to Multus's state of
// the container, with the one network that is left. In dirs, the cache directories of
// the runtime, the callback then writes nothing, because the runtime deletes Multus's
// network and not the one that is left.
func GiveBack(multusDir string, dirs ...string) func(context.Context, lifecycle.AddRecord) error {
	return func(_ context.Context, r lifecycle.AddRecord) error {
		if multusDir == "" {
			_, err := giveBack(r, dirs, dirs)
			return err
		}
		e, err := giveBack(r, slices.Concat(dirs, []string{multusDir}), []string{multusDir})
		if e == nil || err != nil {
			return err
		}
		data, err := json.Marshal([]any{map[string]any{
			"Conf": struct{}{}, "ConfList": json.RawMessage(e.Config), "Name": e.NetworkName, "Bytes": e.Config,
		}})
		if err != nil {
			return err
		}
		return scratch.WriteFile(filepath.Join(multusDir, r.Key.ContainerID), data)
	}
}

// giveBack writes libcni's entry of what is left of r to the caches kept, and removes that of
// the attachment r from the caches old. It returns the first entry, or nil if nothing is left.
func giveBack(r lifecycle.AddRecord, old, kept []string) (*entry, error) {
	i := slices.IndexFunc(r.Attached, func(a delegate.Attached) bool { return a.IfName == r.Key.IfName })
	if i < 0 {
		return nil, nil //nolint:nilnil // there is no entry
	}
	e, err := entryOf(r.Attached[i])
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(e)
	if err != nil {
		return nil, err
	}
	var written []os.FileInfo // a cache may be in both lists, with another path
	for _, dir := range kept {
		if err := os.MkdirAll(cache(dir), 0o700); err != nil {
			return nil, err
		}
		path := filepath.Join(cache(dir), e.file())
		if err := scratch.WriteFile(path, data); err != nil {
			return nil, err
		}
		info, err := os.Lstat(path)
		if err != nil {
			return nil, err
		}
		written = append(written, info)
	}
	ours := entry{NetworkName: r.Key.Network, ContainerID: r.Key.ContainerID, IfName: r.Key.IfName}
	for _, dir := range old {
		path := filepath.Join(cache(dir), ours.file())
		info, err := os.Lstat(path)
		if err == nil && !slices.ContainsFunc(written, func(w os.FileInfo) bool { return os.SameFile(w, info) }) {
			err = os.Remove(path)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
	}
	return e, nil
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
