package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/internal/cause"
	"github.com/metacni/metacni/status"
)

// Run does everything that a plugin's executable does. It reads the CNI_
// variables in system.Env and the configuration on system.Stdin, checks them as
// package skel does, in the same order and with the same errors, executes the
// command, and prints the result to system.Stdout.
//
// If that fails, Run prints the error object of the specification (section 5,
// "Error") and returns the error: an executable then exits with status 1. VERSION
// does not read Stdin. A read of Stdin or a write to Stdout that blocks ends with ctx if
// the stream is an [io.Closer], as files and pipes are; an ADD is then undone. Other
// streams, such as a [bytes.Buffer], are the caller's again when Run returns. Without
// CNI_COMMAND, Run prints About and the [Version] to Stderr, or fails with code 4 if
// there is no About. Stdin and Stdout must not be nil.
func (p Plugin) Run(ctx context.Context, system System) error {
	if mayBlock(system.Stdout) {
		system.Stdout = &output{ctx: ctx, to: system.Stdout}
	}
	r := &run{Plugin: p, system: system, env: variables(system.Env)}
	if r.Versions == nil {
		r.Versions = version.All
	}
	if err := status.Error(r.run(ctx)); err != nil {
		_, _ = system.Stdout.Write(errorObject(r.stdin, err)) // there is nowhere to report a failure
		return err
	}
	return nil
}

// Execute is [Plugin.Run] with the arguments that package delegatetest passes to
// a plugin: delegatetest.Program(p.Execute) runs p in its tests.
func (p Plugin) Execute(ctx context.Context, exec delegate.Exec, env []string, stdin io.Reader, stdout, stderr io.Writer) error {
	return p.Run(ctx, System{Exec: exec, Env: env, Stdin: stdin, Stdout: stdout, Stderr: stderr})
}

// errorObject returns the error object that a plugin prints when it fails with
// err (section 5 of the specification, "Error"), followed by a newline. The code
// and the text are those of [status.Error]. The cniVersion is the one in stdin, the
// configuration. If that has none, or one that is not known, it is the current one.
func errorObject(stdin []byte, err error) []byte {
	var conf struct {
		CNIVersion string `json:"cniVersion"`
	}
	_ = json.Unmarshal(stdin, &conf) // err may be about this
	if !slices.Contains(version.All.SupportedVersions(), conf.CNIVersion) {
		conf.CNIVersion = version.Current()
	}
	var said *types.Error
	errors.As(status.Error(err), &said)
	data, _ := json.Marshal(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{conf.CNIVersion, said}) // cannot fail: strings and a number
	return append(data, '\n')
}

// variables returns the CNI_ variables in env.
func variables(env []string) map[string]string {
	set := make(map[string]string)
	for _, e := range env {
		if key, value, _ := strings.Cut(e, "="); strings.HasPrefix(key, "CNI_") {
			set[key] = value
		}
	}
	return set
}

// cmdArgs returns the arguments in env, the CNI_ variables, with the configuration stdin.
func cmdArgs(env map[string]string, stdin []byte) skel.CmdArgs {
	return skel.CmdArgs{
		ContainerID: env["CNI_CONTAINERID"], Netns: env["CNI_NETNS"], IfName: env["CNI_IFNAME"], Args: env["CNI_ARGS"],
		Path: env["CNI_PATH"], NetnsOverride: env["CNI_NETNS_OVERRIDE"], StdinData: stdin,
	}
}

// A run is one process of a plugin.
type run struct {
	Plugin
	system System
	env    map[string]string // the CNI_ variables
	stdin  []byte            // after it has been read
}

func (r *run) run(ctx context.Context) error {
	command := r.env["CNI_COMMAND"]
	if command == "" && r.About != "" && r.system.Stderr != nil {
		_, err := fmt.Fprintf(r.system.Stderr, "%s %s\nCNI protocol versions supported: %s\n", r.About, Version(), strings.Join(r.Versions.SupportedVersions(), ", "))
		return err
	}
	if err := r.checkVariables(); err != nil {
		return err
	}
	if command == "VERSION" {
		if err := r.Versions.Encode(r.system.Stdout); err != nil {
			return types.NewError(types.ErrIOFailure, err.Error(), "")
		}
		return nil
	}
	var err error
	if r.stdin, err = readAll(ctx, r.system.Stdin); err != nil {
		return err
	}
	if err := r.checkName(); err != nil {
		return err
	}
	since, known := map[string]string{"ADD": "0", "DEL": "0", "CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}[command]
	if !known {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND: "+command, "")
	}
	if err := r.checkVersion(command, since); err != nil {
		return err
	}
	args := cmdArgs(r.env, slices.Clone(r.stdin))
	if err := r.Do(ctx, r.system, delegate.Command(command), args); err != nil || command != "DEL" {
		return err
	}
	return r.system.Root.refuseHost(args.Netns, args.NetnsOverride)
}

// checkVariables fails if a variable that the command requires is missing or
// invalid.
func (r *run) checkVariables() error {
	command := r.env["CNI_COMMAND"]
	container := command == "ADD" || command == "CHECK" || command == "DEL"
	var missing []string
	for _, v := range []struct {
		name     string
		required bool
		validate func(string) *types.Error
	}{
		{"CNI_COMMAND", true, nil},
		{"CNI_CONTAINERID", container, utils.ValidateContainerID},
		{"CNI_NETNS", container && command != "DEL", nil},
		{"CNI_IFNAME", container, utils.ValidateInterfaceName},
		{"CNI_PATH", container || command == "GC" || command == "STATUS", nil},
	} {
		switch value := r.env[v.name]; {
		case !v.required:
		case value == "":
			missing = append(missing, v.name)
		case v.validate != nil:
			if err := v.validate(value); err != nil {
				return err
			}
		}
	}
	if len(missing) > 0 {
		return types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("required env variables [%s] missing", strings.Join(missing, ",")), "")
	}
	return nil
}

// checkName fails if the configuration has no valid name.
func (r *run) checkName() error {
	var conf struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(r.stdin, &conf); err != nil {
		return types.NewError(types.ErrDecodingFailure, fmt.Sprintf("error unmarshall network config: %v", err), "")
	}
	if conf.Name == "" {
		return types.NewError(types.ErrInvalidNetworkConfig, "missing network name", "")
	}
	if err := utils.ValidateNetworkName(conf.Name); err != nil {
		return err
	}
	return nil
}

// checkVersion fails if the plugin does not support the configuration's version,
// or if that version is older than since, in which command was introduced.
func (r *run) checkVersion(command, since string) error {
	conf, err := new(version.ConfigDecoder).Decode(r.stdin)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	if since != "0" {
		if ok, err := version.GreaterThanOrEqualTo(conf, since); err != nil {
			return types.NewError(types.ErrDecodingFailure, err.Error(), "")
		} else if !ok {
			return types.NewError(types.ErrIncompatibleCNIVersion, "config version does not allow "+command, "")
		}
		allows := func(supported string) bool {
			ok, err := version.GreaterThanOrEqualTo(supported, conf)
			return ok && err == nil
		}
		if !slices.ContainsFunc(r.Versions.SupportedVersions(), allows) {
			return types.NewError(types.ErrIncompatibleCNIVersion, "plugin version does not allow "+command, "")
		}
	}
	if err := new(version.Reconciler).Check(conf, r.Versions); err != nil {
		return types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI versions", err.Details())
	}
	return nil
}

// readAll reads stdin to its end. If stdin may block and ctx ends first, the error says
// why, with CNI code 11.
func readAll(ctx context.Context, stdin io.Reader) ([]byte, error) {
	var data []byte
	var err error
	read := make(chan struct{})
	go func() {
		data, err = io.ReadAll(stdin)
		close(read)
	}()
	var ended <-chan struct{}
	if mayBlock(stdin) {
		ended = ctx.Done()
	}
	select {
	case <-read:
	case <-ended:
		return nil, types.NewError(types.ErrTryAgainLater, fmt.Sprintf("reading the configuration: %v", cause.Of(ctx)), "")
	}
	if err != nil {
		return nil, types.NewError(types.ErrIOFailure, fmt.Sprintf("error reading from stdin: %v", err), "")
	}
	return data, nil
}
