// Package program is the main of the example plugins: all that touches the
// process, so that the plugins themselves can be tested without one.
package program

import (
	"cmp"
	"context"
	"encoding/json"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/delegate/lifecycle"
	"github.com/metacni/metacni/status"
)

// UndoTimeout bounds undoing once the process has been told to stop: runtimes
// do not wait long between SIGTERM and SIGKILL.
const UndoTimeout = 3 * time.Second

// delTries is how often a runtime may have tried in vain to delete an attachment
// whose network namespace is gone: about a minute's worth of a kubelet's tries.
const delTries = 10

// A Process is what a plugin takes from its process, and its tests fake.
type Process struct {
	Exec   invoke.Exec
	Env    []string
	Stdout io.Writer // for the result; errors are printed by Main

	// Root, when not empty, is the root directory in which paths of network
	// namespaces are looked at: that of the delegated plugins.
	Root string

	// InterfaceNames is [lifecycle.Manager.InterfaceNames].
	InterfaceNames func(netns string) ([]string, error)
}

// DefaultPath is where plugins find the programs they need, such as iptables,
// where a process has no PATH.
const DefaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// WithPath returns env, with the default PATH if it has none.
func WithPath(env []string) []string {
	for _, e := range env {
		if strings.HasPrefix(e, "PATH=") && e != "PATH=" {
			return env
		}
	}
	return append(slices.Clone(env), "PATH="+DefaultPath)
}

// InRoot returns p as a process that no runtime has started, on a node whose root
// directory is root: its plugins run there, with a PATH. The empty root is the
// process's own.
func (p Process) InRoot(root string) Process {
	p.Root, p.Env = root, WithPath(p.Env)
	if x, ok := p.Exec.(*Exec); ok {
		x = &Exec{x.Process}
		x.Root = root
		p.Exec = x
	}
	return p
}

// Manager returns a manager of the records in dir that runs plugins in the
// directories of path, as the plugin of type typ that the runtime knows.
func (p Process) Manager(dir, typ string, path []string) *lifecycle.Manager {
	return &lifecycle.Manager{
		Dir: dir, Root: p.Root, InterfaceNames: p.InterfaceNames, DelTries: delTries,
		Invoker: &delegate.Invoker{Exec: p.Exec, Env: p.Env, Path: path, Self: []string{typ}, UndoTimeout: UndoTimeout},
	}
}

// Main runs the plugin that commands makes, as the CNI specification wants
// (section 2), and exits with status 1 when its command fails. The context of
// the commands ends with the first signal that asks the process to stop.
func Main(about string, commands func(context.Context, Process) skel.CNIFuncs) {
	Run(about, func(ctx context.Context) skel.CNIFuncs { return commands(ctx, OfProcess()) })
}

// OfProcess returns what a plugin takes from this process.
func OfProcess() Process {
	return Process{
		Exec: &Exec{delegate.Process{Stderr: os.Stderr}}, Env: os.Environ(), Stdout: os.Stdout,
	}
}

// Run is [Main] for a plugin that sees to its process by itself.
func Run(about string, commands func(context.Context) skel.CNIFuncs) {
	if os.Getenv("CNI_COMMAND") == "VERSION" {
		if err := version.All.Encode(os.Stdout); err != nil { // as skel does it, but for reading stdin first
			os.Exit(1)
		}
		return
	}
	var stdin []byte
	ctx := untilSignal(context.Background())
	command := func(pick func(skel.CNIFuncs) func(*skel.CmdArgs) error) func(*skel.CmdArgs) error {
		return func(args *skel.CmdArgs) error {
			stdin = args.StdinData
			return status.Error(pick(commands(ctx))(args))
		}
	}
	err := skel.PluginMainFuncsWithError(skel.CNIFuncs{
		Add:    command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Add }),
		Check:  command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Check }),
		Del:    command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Del }),
		GC:     command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.GC }),
		Status: command(func(f skel.CNIFuncs) func(*skel.CmdArgs) error { return f.Status }),
	}, version.All, about)
	if err != nil {
		report(stdin, err)
		os.Exit(1)
	}
}

// report prints the error object of the specification (section "Error"), in
// the version of the configuration, as far as that is known.
func report(stdin []byte, err *types.Error) {
	var conf struct {
		CNIVersion string `json:"cniVersion"`
	}
	_ = json.Unmarshal(stdin, &conf) // perhaps that is the error
	object := struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{cmp.Or(conf.CNIVersion, version.Current()), err}
	_ = json.NewEncoder(os.Stdout).Encode(object) // nobody is left to tell of a failure
}
