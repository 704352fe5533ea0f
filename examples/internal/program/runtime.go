package program

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/internal/inroot"
	"github.com/metacni/metacni/scratch"
)

// Commands are those of a plugin that prepares each in the same way, from
// arguments completed by [CNIArgs]. They end early, undoing what they did, with
// ctx.
func Commands[C any](ctx context.Context, prepare func(*skel.CmdArgs) (C, error), add, check, del, gc, status func(C, context.Context) error) skel.CNIFuncs {
	command := func(do func(C, context.Context) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error {
			completed := *args
			completed.Args = CNIArgs(args.Args)
			c, err := prepare(&completed)
			if err != nil {
				return err
			}
			return advise(do(c, ctx))
		}
	}
	return skel.CNIFuncs{Add: command(add), Check: command(check), Del: command(del), GC: command(gc), Status: command(status)}
}

// advise adds to the error of a damaged record what an operator can do about it.
func advise(err error) error {
	if !errors.Is(err, scratch.ErrCorrupt) {
		return err
	}
	return fmt.Errorf(`%w (clean up after the container, then let "multinet forget" remove its record)`, err)
}

// CNIArgs returns args, the value of CNI_ARGS, as delegated plugins bear with
// them: with IgnoreUnknown=1 where they name a Kubernetes pod and do not say
// whether to ignore what is unknown. Runtimes say so, but not everybody who
// attaches networks does: multus-dynamic-networks-controller does not, and
// bridge, macvlan and host-local refuse its arguments, in the DEL too.
func CNIArgs(args string) string {
	ofPod := false
	for pair := range strings.SplitSeq(args, ";") {
		key, _, ok := strings.Cut(pair, "=")
		if key == "IgnoreUnknown" {
			return args
		}
		ofPod = ofPod || ok && strings.HasPrefix(key, "K8S_")
	}
	if !ofPod {
		return args
	}
	return "IgnoreUnknown=1;" + args
}

// RefuseHostNetwork fails for the network namespace that the process itself
// runs in, unless args allow it: skel would find out after the result was
// printed, and a daemon not at all. Its path is looked at in root.
func RefuseHostNetwork(root string, args *skel.CmdArgs) error {
	if args.NetnsOverride == "1" || strings.EqualFold(args.NetnsOverride, "true") {
		return nil
	}
	same := false
	_ = inroot.With(root, args.Netns, func(path string) error { // what is not there is not ours
		theirs, err := os.Stat(path)
		if err != nil {
			return err
		}
		ours, err := os.Stat("/proc/self/ns/net")
		same = err == nil && os.SameFile(ours, theirs)
		return err
	})
	if same {
		return types.NewError(types.ErrInvalidNetNS, "CNI_NETNS is the host's own network namespace", args.Netns)
	}
	return nil
}

// SameFile reports whether two paths in root lead to one file.
func SameFile(root, a, b string) bool {
	stat := func(path string) (info fs.FileInfo) {
		_ = inroot.With(root, path, func(path string) (err error) { // what is not there is not the same
			info, err = os.Stat(path)
			return err
		})
		return info
	}
	first, second := stat(a), stat(b)
	return first != nil && second != nil && os.SameFile(first, second)
}
