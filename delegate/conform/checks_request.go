package conform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"

	"github.com/containernetworking/cni/pkg/utils"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/printed"
)

// checkRequest checks what delegates receive on stdin in every command.
func checkRequest(ctx context.Context, b *bench, added outcome) error {
	for _, command := range []string{"CHECK", "GC", "STATUS", "DEL"} {
		if b.knows(command) {
			b.call(ctx, b.later(command, added)) // how it ends is for other checks
		}
	}
	var errs []error
	for _, c := range b.exec.Calls() {
		if c.Command == "VERSION" {
			continue
		}
		if err := b.isComplete(c.Plugin, c.Stdin); err != nil {
			errs = append(errs, fmt.Errorf("the stdin of %v: %w: what arrived is %s", c, err, printed.Clip(c.Stdin)))
		}
	}
	return one(errs...)
}

func (b *bench) isComplete(typ string, stdin []byte) error {
	var conf struct{ Name, CNIVersion string }
	if err := json.Unmarshal(stdin, &conf); err != nil {
		return err
	}
	if utils.ValidateNetworkName(conf.Name) != nil {
		return fmt.Errorf("the name %q is not a network's", conf.Name)
	}
	if conf.CNIVersion == "" {
		return errors.New("no cniVersion")
	}
	if slices.Contains(b.marked, typ) && !has(stdin, decode([]byte(unknownValue))) {
		return fmt.Errorf("the key %q does not have the value that it was configured with, %s", unknownKey, unknownValue)
	}
	return nil
}

// has reports whether the unknown key has this value, to the last digit, at any depth of text.
func has(text []byte, value any) (found bool) {
	value = rewrite(value, number)
	rewrite(decode(text), func(v any) any {
		v = number(v)
		if object, ok := v.(map[string]any); ok {
			found = found || reflect.DeepEqual(object[unknownKey], value)
		}
		return v
	})
	return found
}

func checkEnvironment(ctx context.Context, b *bench, added outcome) error {
	b.call(ctx, b.later("DEL", added)) // how it ends is for other checks
	var errs []error
	ours := false
	for _, c := range b.exec.Calls() {
		if c.Command == "VERSION" {
			continue
		}
		ours = ours || c.Command == "ADD" && c.IfName == b.ifname
		errs = append(errs, b.sees(c))
	}
	if !ours {
		errs = append(errs, fmt.Errorf("no delegate is called with the CNI_IFNAME of the plugin, %s: delegates ran as %q", b.ifname, b.exec.Trace()))
	}
	return one(errs...)
}

func checkStderr(_ context.Context, b *bench, added outcome) error {
	var errs []error
	for _, c := range b.calls("ADD") {
		if line := said(c.Command, c.Plugin); !bytes.Contains(added.Stderr, []byte(line)) {
			errs = append(errs, fmt.Errorf("the stderr of the plugin is %q, without %q of its delegate", printed.Clip(added.Stderr), line))
		}
	}
	return one(errs...)
}

// sees fails unless c has the environment of the plugin.
func (b *bench) sees(c delegatetest.Invocation) error {
	want := delegatetest.Invocation{ContainerID: "c1", NetNS: b.c1.path, Args: b.args()}
	for _, v := range []struct{ name, got, want string }{
		{"CNI_CONTAINERID", c.ContainerID, want.ContainerID},
		{"CNI_NETNS", c.NetNS, want.NetNS},
		{"CNI_ARGS", c.Args, want.Args},
	} {
		if v.got != v.want {
			return fmt.Errorf("%v has %s %q, the plugin %q", c, v.name, v.got, v.want)
		}
	}
	if !slices.Contains(filepath.SplitList(c.Path), b.served.path) {
		return fmt.Errorf("%v has CNI_PATH %q, without the plugin's %q", c, c.Path, b.served.path)
	}
	if b.kind.Name != kindShim && !slices.Contains(c.Env, handedOn) {
		return fmt.Errorf("%v does not have the variable %s of the plugin's environment", c, handedOnName)
	}
	return nil
}
