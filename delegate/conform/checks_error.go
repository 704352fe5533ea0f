package conform

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/printed"
)

// A failedCall is a call that must fail, or that a plugin may refuse.
type failedCall struct {
	what string
	must bool   // whether success is a fault that no other check is about
	in   string // the version of the configuration, where the plugin has read that
	outcome
}

const withoutName = "ADD without CNI_IFNAME"

func (s *suite) failures(ctx context.Context) ([]failedCall, error) {
	b, err := s.bench(ctx)
	if err != nil {
		return nil, err
	}
	all := []failedCall{{withoutName, false, "", b.call(ctx, delegatetest.Invocation{Command: "ADD", IfName: none})}}
	for _, command := range []string{"ADD", "CHECK", "DEL", "GC", "STATUS"} {
		if s.knows(command) {
			all = append(all, failedCall{command + " with half a configuration", command == "ADD", "", b.call(ctx, delegatetest.Invocation{Command: command, Stdin: half()})})
		}
	}
	if len(s.conf.Delegates) == 0 {
		return all, nil
	}
	b.fault("ADD", s.fatal(), failing)
	return append(all, failedCall{"ADD whose delegate fails", false, b.version, b.call(ctx, delegatetest.Invocation{Command: "ADD"})}), nil
}

func checkError(ctx context.Context, s *suite) error {
	failures, err := s.failures(ctx)
	errs := []error{err}
	for _, f := range failures {
		if f.Status == 0 {
			if f.must {
				errs = append(errs, fmt.Errorf("%s succeeds", f.what))
			}
			continue
		}
		doc, err := printed.Document(f.Stdout)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.what, err))
			continue
		}
		var said struct {
			Code uint   `json:"code"`
			Msg  string `json:"msg"`
		}
		if err := json.Unmarshal(doc, &said); err != nil || said.Code == 0 || said.Msg == "" {
			errs = append(errs, fmt.Errorf("%s: %s is not an error object with code and msg", f.what, printed.Clip(doc)))
		} else if said.Code == types.ErrInvalidEnvironmentVariables && f.what == withoutName && !bytes.Contains(doc, []byte("CNI_IFNAME")) {
			errs = append(errs, fmt.Errorf("%s: %s has code 4, and does not name the variable", f.what, printed.Clip(doc)))
		}
	}
	return one(errs...)
}

func checkErrorVersion(ctx context.Context, s *suite) error {
	failures, err := s.failures(ctx)
	errs := []error{err}
	for _, f := range failures {
		var said struct {
			CNIVersion string `json:"cniVersion"`
		}
		// The check "error" is about errors without an object.
		if doc, err := printed.Document(f.Stdout); f.Status == 0 || err != nil || json.Unmarshal(doc, &said) != nil {
			continue
		}
		switch {
		case said.CNIVersion == "":
			errs = append(errs, fmt.Errorf("%s: the error object has no cniVersion; a plugin in Go that calls skel.PluginMainFuncs prints none, and "+
				"skel.PluginMainFuncsWithError returns the error to be printed with it", f.what))
		case f.in != "" && said.CNIVersion != f.in:
			errs = append(errs, fmt.Errorf("%s: the error object has cniVersion %q, and the configuration %q", f.what, printed.Clip([]byte(said.CNIVersion)), f.in))
		}
	}
	return one(errs...)
}

func checkCode(ctx context.Context, s *suite) error {
	var errs []error
	without := map[string]string{"CHECK": "check-fresh", "DEL": "del"} // a fault
	for _, command := range []string{"ADD", "CHECK", "DEL"} {
		if !s.knows(command) || s.failed[without[command]] != "" {
			continue
		}
		errs = append(errs, onNew(func(ctx context.Context, b *bench, o outcome) error {
			if command != "ADD" {
				o = b.call(ctx, delegatetest.Invocation{Command: "ADD"})
			}
			b.fault(command, s.fatal(), failing)
			err := b.call(ctx, b.later(command, o)).Err()
			if said := (*types.Error)(nil); err != nil && (!errors.As(err, &said) || said.Code != failure) {
				return fmt.Errorf("%s with a delegate that fails with code %d: %w", command, failure, bounded(err))
			}
			return nil
		})(ctx, s))
	}
	return one(errs...)
}
