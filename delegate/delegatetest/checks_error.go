package delegatetest

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
)

// A failedCall is a call that must fail: it is wrong, or its delegate fails.
type failedCall struct {
	what    string
	version string // of the error; empty where the plugin cannot know
	Outcome
}

func (s *suite) failures(ctx context.Context) ([]failedCall, error) {
	b, err := s.bench(ctx)
	if err != nil {
		return nil, err
	}
	b.fault("ADD", s.fatal(), failing)
	failures := []failedCall{
		{"an ADD whose delegate fails", b.version, b.call(ctx, Call{Command: "ADD"})},
		{"an ADD without CNI_IFNAME", "", b.call(ctx, Call{Command: "ADD", IfName: none})},
		{"an ADD with half a configuration", "", b.call(ctx, Call{Command: "ADD", Stdin: []byte(`{"cniVersion":`)})},
	}
	if s.need(delegates) != nil {
		failures = failures[1:]
	}
	return failures, nil
}

func checkError(ctx context.Context, s *suite) error {
	failures, err := s.failures(ctx)
	errs := []error{err}
	for _, f := range failures {
		if f.Status == 0 {
			errs = append(errs, fmt.Errorf("%s succeeds", f.what))
			continue
		}
		doc, err := f.document()
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.what, err))
			continue
		}
		var said struct {
			Code uint   `json:"code"`
			Msg  string `json:"msg"`
		}
		if err := json.Unmarshal(doc, &said); err != nil || said.Code == 0 || said.Msg == "" {
			errs = append(errs, fmt.Errorf("%s: %s is not an error object with code and msg", f.what, doc))
		}
	}
	return errors.Join(errs...)
}

func checkErrorVersion(ctx context.Context, s *suite) error {
	failures, err := s.failures(ctx)
	errs := []error{err}
	without := false
	for _, f := range failures {
		var said struct {
			CNIVersion string `json:"cniVersion"`
		}
		// The check "error" is about errors without an object.
		if doc, err := f.document(); f.Status == 0 || err != nil || json.Unmarshal(doc, &said) != nil {
			continue
		}
		if said.CNIVersion == "" || f.version != "" && said.CNIVersion != f.version {
			errs = append(errs, fmt.Errorf("%s: the error has cniVersion %q, the configuration %q", f.what, said.CNIVersion, f.version))
			without = without || said.CNIVersion == ""
		}
	}
	if without {
		errs = append(errs, errors.New("a plugin in Go that calls skel.PluginMainFuncs prints errors without a cniVersion; "+
			"skel.PluginMainFuncsWithError returns them to be printed with it"))
	}
	return errors.Join(errs...)
}

func checkCode(ctx context.Context, s *suite) error {
	if err := cmp.Or(s.need(delegates), s.works()); err != nil {
		return err
	}
	var errs []error
	for _, command := range []string{"ADD", "CHECK", "DEL"} {
		errs = append(errs, onNew(func(ctx context.Context, b *bench, o Outcome) error {
			if command != "ADD" {
				o = b.call(ctx, Call{Command: "ADD"})
			}
			b.fault(command, s.fatal(), failing)
			err := b.call(ctx, b.later(command, o)).Err()
			if said := (*types.Error)(nil); err != nil && (!errors.As(err, &said) || said.Code != failure) {
				return fmt.Errorf("%s with a delegate that fails with code %d: %w", command, failure, err)
			}
			return nil
		}, command)(ctx, s))
	}
	return errors.Join(slices.DeleteFunc(errs, func(err error) bool { return errors.As(err, new(*skipError)) })...)
}
