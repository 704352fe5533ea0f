package adopt

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/scratch"
)

// GiveBack returns what [lifecycle.Manager.Release] is to call: it writes the
// attachment that is left into libcni's cache in each of dirs, as libcni would
// have when it made it. The DEL of whoever uses that cache then has the result
// of the ADD, and its arguments. The directories are made where they are
// missing; when GiveBack returns nil the entries survive a loss of power.
func GiveBack(dirs ...string) func(context.Context, lifecycle.Record) error {
	return func(_ context.Context, r lifecycle.Record) error {
		i := slices.IndexFunc(r.Attached, func(a delegate.Attached) bool { return a.IfName == r.Key.IfName })
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
		}
		return nil
	}
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
