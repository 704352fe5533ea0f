package program

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/ifname"
)

// Commands are those of a plugin that prepares each in the same way. They end
// early, undoing what they did, with ctx.
func Commands[C any](ctx context.Context, prepare func(*skel.CmdArgs) (C, error), add, check, del, gc, status func(C, context.Context) error) skel.CNIFuncs {
	command := func(do func(C, context.Context) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error {
			c, err := prepare(args)
			if err != nil {
				return err
			}
			return do(c, ctx)
		}
	}
	return skel.CNIFuncs{Add: command(add), Check: command(check), Del: command(del), GC: command(gc), Status: command(status)}
}

// RefuseHostNetwork fails for the network namespace that the process itself
// runs in, unless args allow it: skel would find out after the result was
// printed.
func RefuseHostNetwork(args *skel.CmdArgs) error {
	if args.NetnsOverride == "1" || strings.EqualFold(args.NetnsOverride, "true") {
		return nil
	}
	theirs, err := os.Stat(args.Netns)
	if err != nil {
		return nil //nolint:nilerr // what is not there is not ours
	}
	ours, err := os.Stat("/proc/self/ns/net")
	if err == nil && os.SameFile(ours, theirs) {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS is the host's own network namespace", args.Netns)
	}
	return nil
}

// interfaceNames is [ifname.Taken], except that a namespace that is not there,
// or is not ours to look into, has no names: it is for the plugins to complain
// about.
func interfaceNames(netns string) ([]string, error) {
	names, err := ifname.Taken(netns)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, ifname.ErrNetNS) || err != nil && os.Geteuid() != 0 {
		return nil, nil
	}
	return names, err
}
