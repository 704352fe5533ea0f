package delegatetest

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// errKilled is all that is known of a process that was killed.
func errKilled() error { return errors.New("signal: killed") }

// FailOn returns p with its command replaced by a failure with code and msg.
// Here and in the other faults, the empty command is every command.
func FailOn(command string, code uint, msg string, p Plugin) Plugin {
	return on(command, p, func(context.Context, Call) ([]byte, error) {
		return nil, types.NewError(code, msg, "")
	})
}

// PartialOn returns p with its command done, and then failed with code and msg
// all the same, as by a plugin that finds out late. That differs from
// [FailOn] where p does something: an attachment counts as alive either way.
func PartialOn(command string, code uint, msg string, p Plugin) Plugin {
	return after(command, p, func([]byte) ([]byte, error) {
		return nil, types.NewError(code, msg, "")
	})
}

// KillOn returns p killed when it has done its command, before it printed
// anything.
func KillOn(command string, p Plugin) Plugin {
	return after(command, p, func([]byte) ([]byte, error) { return nil, errKilled() })
}

// HangOn returns p with its command replaced by a wait for the context's end.
// The error then says as little as that of a killed process.
func HangOn(command string, p Plugin) Plugin {
	return on(command, p, func(ctx context.Context, _ Call) ([]byte, error) {
		<-ctx.Done()
		return nil, errKilled()
	})
}

// SlowOn returns p with a wait of d before its command. If the context ends
// meanwhile p has done nothing, and the error is that of a killed process. In a
// bubble of testing/synctest it takes no time.
func SlowOn(command string, d time.Duration, p Plugin) Plugin {
	return on(command, p, func(ctx context.Context, c Call) ([]byte, error) {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			return p(ctx, c)
		case <-ctx.Done():
			return nil, errKilled()
		}
	})
}

// GateOn returns p with a wait before its command until gate is closed, or
// something received from it. The end of the context is as in [SlowOn].
func GateOn(command string, gate <-chan struct{}, p Plugin) Plugin {
	return on(command, p, func(ctx context.Context, c Call) ([]byte, error) {
		select {
		case <-gate:
			return p(ctx, c)
		case <-ctx.Done():
			return nil, errKilled()
		}
	})
}

// NoiseOn returns p with noise printed before what its command prints.
func NoiseOn(command, noise string, p Plugin) Plugin {
	return on(command, p, func(ctx context.Context, c Call) ([]byte, error) {
		out, err := p(ctx, c)
		return slices.Concat([]byte(noise), out), err
	})
}

// TwiceOn returns p with what its command prints printed twice: two documents
// where there must be one.
func TwiceOn(command string, p Plugin) Plugin {
	return after(command, p, func(out []byte) ([]byte, error) {
		out = append(bytes.TrimSpace(out), '\n')
		return slices.Concat(out, out), nil
	})
}

// SilentOn returns p with its command done and nothing printed.
func SilentOn(command string, p Plugin) Plugin {
	return after(command, p, func([]byte) ([]byte, error) { return nil, nil })
}

// GarbageOn returns p with its command done, and something printed that is not
// JSON: the start of a document.
func GarbageOn(command string, p Plugin) Plugin {
	return after(command, p, func([]byte) ([]byte, error) { return []byte(`{"cniVersion":`), nil })
}

// after returns p with the end of its command, if that succeeded, replaced.
func after(command string, p Plugin, end func(out []byte) ([]byte, error)) Plugin {
	return on(command, p, func(ctx context.Context, c Call) ([]byte, error) {
		out, err := p(ctx, c)
		if err != nil {
			return out, err
		}
		return end(out)
	})
}

// on returns p with its command replaced by do.
func on(command string, p, do Plugin) Plugin {
	return func(ctx context.Context, c Call) ([]byte, error) {
		if command == "" || c.Command == command {
			return do(ctx, c)
		}
		return p(ctx, c)
	}
}
