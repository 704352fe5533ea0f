package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate"
	"github.com/metacni/metacni/status"
)

// Run does what an executable does that a runtime has started as process: it
// reads the CNI_ variables of Env and the configuration on Stdin, checks them as
// package skel does, in the same order and with the same errors, executes the
// command and prints its result.
//
// When that fails Run prints the error object of the specification (section 5,
// "Error"), with the cniVersion of the configuration, and returns it: an
// executable exits with status 1. VERSION does not read Stdin. Without
// CNI_COMMAND it prints About and the [Version] to Stderr.
func (p Plugin) Run(ctx context.Context, process Process) error {
	r := &run{Plugin: p, process: process, env: variables(process.Env)}
	if r.Versions == nil {
		r.Versions = version.All
	}
	if err := status.Error(r.run(ctx)); err != nil {
		_, _ = process.Stdout.Write(ErrorObject(r.stdin, err)) // nobody is left to tell of a failure
		return err
	}
	return nil
}

// Execute is [Plugin.Run] with what package delegatetest gives a plugin that it
// runs: delegatetest.Program(p.Execute).
func (p Plugin) Execute(ctx context.Context, exec invoke.Exec, env []string, stdin io.Reader, stdout, stderr io.Writer) error {
	return p.Run(ctx, Process{Exec: exec, Env: env, Stdin: stdin, Stdout: stdout, Stderr: stderr})
}

// ErrorObject returns what a plugin that was given stdin prints when it fails
// with err: the error object of the specification (section 5, "Error") with the
// code and the text of [status.Error], and a line feed. Its cniVersion is that of
// the configuration, or the current one where that is not known.
func ErrorObject(stdin []byte, err error) []byte {
	var conf struct {
		CNIVersion string `json:"cniVersion"`
	}
	_ = json.Unmarshal(stdin, &conf) // perhaps that is the error
	if !slices.Contains(version.All.SupportedVersions(), conf.CNIVersion) {
		conf.CNIVersion = version.Current()
	}
	var said *types.Error
	errors.As(status.Error(err), &said)
	data, _ := json.Marshal(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{conf.CNIVersion, said}) // strings and a number: it cannot fail
	return append(data, '\n')
}

// variables are those of the specification that env sets.
func variables(env []string) map[string]string {
	set := make(map[string]string)
	for _, e := range env {
		if key, value, _ := strings.Cut(e, "="); strings.HasPrefix(key, "CNI_") {
			set[key] = value
		}
	}
	return set
}

// A run is one process of a plugin.
type run struct {
	Plugin
	process Process
	env     map[string]string // the CNI_ variables
	stdin   []byte            // once it was read
}

func (r *run) run(ctx context.Context) error {
	command := r.env["CNI_COMMAND"]
	if command == "" && r.About != "" && r.process.Stderr != nil {
		_, err := fmt.Fprintf(r.process.Stderr, "%s %s\nCNI protocol versions supported: %s\n", r.About, Version(), strings.Join(r.Versions.SupportedVersions(), ", "))
		return err
	}
	if err := r.checkVariables(); err != nil {
		return err
	}
	if command == "VERSION" {
		if err := r.Versions.Encode(r.process.Stdout); err != nil {
			return types.NewError(types.ErrIOFailure, err.Error(), "")
		}
		return nil
	}
	var err error
	if r.stdin, err = io.ReadAll(r.process.Stdin); err != nil {
		return types.NewError(types.ErrIOFailure, fmt.Sprintf("error reading from stdin: %v", err), "")
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
	args := skel.CmdArgs{
		ContainerID: r.env["CNI_CONTAINERID"], Netns: r.env["CNI_NETNS"], IfName: r.env["CNI_IFNAME"], Args: r.env["CNI_ARGS"],
		Path: r.env["CNI_PATH"], NetnsOverride: r.env["CNI_NETNS_OVERRIDE"], StdinData: slices.Clone(r.stdin),
	}
	if err := r.Do(ctx, r.process, delegate.Command(command), args); err != nil || command != "DEL" {
		return err
	}
	return (&Call{Process: r.process, CmdArgs: args}).refuseHost()
}

// checkVariables requires the variables of the command, and validates them.
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

// checkName requires a network's name.
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

// checkVersion requires a configuration of a version that the plugin supports
// and that has the command, which is there since a version.
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
