// Package skeleton runs the callbacks of a CNI plugin's main as package skel
// does in a process, without one: the variables of the environment, the
// configuration and the versions are checked in the same order, with the same
// errors. A test of package delegatetest compares the two.
package skeleton

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/containernetworking/cni/pkg/ns"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/utils"
	"github.com/containernetworking/cni/pkg/version"
)

// A Plugin is what a main passes to package skel.
type Plugin struct {
	Commands func() skel.CNIFuncs // called for a command that passed the checks
	Versions version.PluginInfo
	Stdout   io.Writer // for the answer to VERSION
}

// A Call is what a process is given: the variables of the specification, and
// stdin.
type Call struct {
	Command, ContainerID, NetNS, IfName, Args, Path string
	NetNSOverride                                   string
	Stdin                                           []byte
}

// Run runs p for c. It fails with the callback's own error, or with the
// [*types.Error] that skel would print in place of calling it.
func Run(p Plugin, c Call) error {
	s := &skeleton{Plugin: p, call: c}
	return s.run()
}

// Error returns err as skel has it: the first [*types.Error] in it, or one of
// code 999 with its text.
func Error(err error) *types.Error {
	said := types.NewError(types.ErrInternal, err.Error(), "")
	errors.As(err, &said)
	return said
}

// ErrorObject returns what a plugin that was given stdin prints when it fails
// with err: the error object of the specification (section 5, "Error"), with
// the cniVersion that skel leaves out, and a line feed.
func ErrorObject(stdin []byte, err *types.Error) []byte {
	var conf struct {
		CNIVersion string `json:"cniVersion"`
	}
	_ = json.Unmarshal(stdin, &conf) // perhaps that is the error
	data, _ := json.Marshal(struct {
		CNIVersion string `json:"cniVersion"`
		*types.Error
	}{cmp.Or(conf.CNIVersion, version.Current()), err}) // strings and a number: it cannot fail
	return append(data, '\n')
}

type skeleton struct {
	Plugin
	call Call
}

func (s *skeleton) run() error {
	override := s.call.NetNSOverride
	if err := s.checkVariables(); err != nil {
		return err
	}
	command := s.call.Command
	if command == "VERSION" {
		if err := s.Versions.Encode(s.Stdout); err != nil {
			return types.NewError(types.ErrIOFailure, err.Error(), "")
		}
		return nil
	}
	if err := checkName(s.call.Stdin); err != nil {
		return err
	}
	since, known := map[string]string{"ADD": "0", "DEL": "0", "CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}[command]
	if !known {
		return types.NewError(types.ErrInvalidEnvironmentVariables, "unknown CNI_COMMAND: "+command, "")
	}
	if err := s.checkVersion(since); err != nil {
		return err
	}
	funcs := s.Commands()
	callback := map[string]func(*skel.CmdArgs) error{
		"ADD": funcs.Add, "DEL": funcs.Del, "CHECK": funcs.Check, "GC": funcs.GC, "STATUS": funcs.Status,
	}[command]
	if callback != nil {
		if err := callback(&skel.CmdArgs{
			ContainerID: s.call.ContainerID, Netns: s.call.NetNS, IfName: s.call.IfName, Args: s.call.Args,
			Path: s.call.Path, NetnsOverride: override, StdinData: slices.Clone(s.call.Stdin),
		}); err != nil {
			return err
		}
	}
	if since != "0" || override == "1" || strings.EqualFold(override, "true") {
		return nil
	}
	own, err := ns.CheckNetNS(s.call.NetNS)
	if err != nil {
		return err
	}
	if own {
		return types.NewError(types.ErrInvalidNetNS, "plugin's netns and netns from CNI_NETNS should not be the same", "")
	}
	return nil
}

// checkVariables requires the variables of the command, and validates those.
func (s *skeleton) checkVariables() error {
	c := s.call
	container := c.Command == "ADD" || c.Command == "CHECK" || c.Command == "DEL"
	var missing []string
	for _, v := range []struct {
		name, value string
		required    bool
		validate    func(string) *types.Error
	}{
		{"CNI_COMMAND", c.Command, true, nil},
		{"CNI_CONTAINERID", c.ContainerID, container, utils.ValidateContainerID},
		{"CNI_NETNS", c.NetNS, container && c.Command != "DEL", nil},
		{"CNI_IFNAME", c.IfName, container, utils.ValidateInterfaceName},
		{"CNI_PATH", c.Path, container || c.Command == "GC" || c.Command == "STATUS", nil},
	} {
		switch {
		case !v.required:
		case v.value == "":
			missing = append(missing, v.name)
		case v.validate != nil:
			if err := v.validate(v.value); err != nil {
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
func checkName(stdin []byte) error {
	var conf struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(stdin, &conf); err != nil {
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
func (s *skeleton) checkVersion(since string) error {
	conf, err := new(version.ConfigDecoder).Decode(s.call.Stdin)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, err.Error(), "")
	}
	if since != "0" {
		if ok, err := version.GreaterThanOrEqualTo(conf, since); err != nil {
			return types.NewError(types.ErrDecodingFailure, err.Error(), "")
		} else if !ok {
			return types.NewError(types.ErrIncompatibleCNIVersion, "config version does not allow "+s.call.Command, "")
		}
		allows := func(supported string) bool {
			ok, err := version.GreaterThanOrEqualTo(supported, conf)
			return ok && err == nil
		}
		if !slices.ContainsFunc(s.Versions.SupportedVersions(), allows) {
			return types.NewError(types.ErrIncompatibleCNIVersion, "plugin version does not allow "+s.call.Command, "")
		}
	}
	if err := new(version.Reconciler).Check(conf, s.Versions); err != nil {
		return types.NewError(types.ErrIncompatibleCNIVersion, "incompatible CNI versions", err.Details())
	}
	return nil
}
