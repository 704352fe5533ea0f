package delegatetest

import (
	"bytes"
	"context"
	"errors"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
)

// errKilled is the error of a process that was killed.
func errKilled() error { return errors.New("signal: killed") }

// FailOn returns p, except that command fails with code and msg and does nothing. An
// attachment counts as alive all the same: a plugin that fails may have done a part.
// For this and the other faults, an empty command means every command.
func FailOn(command string, code uint, msg string, p Plugin) Plugin {
	return on(command, p, func(context.Context, Call) ([]byte, error) {
		return nil, types.NewError(code, msg, "")
	})
}

// KillOn returns p, except that it is killed after it has done command and before
// it prints anything.
func KillOn(command string, p Plugin) Plugin {
	return on(command, p, func(ctx context.Context, c Call) ([]byte, error) {
		if out, err := p(ctx, c); err != nil {
			return out, err
		}
		return nil, errKilled()
	})
}

// HangOn returns p, except that command does nothing until the context ends. The
// error is that of a killed process.
func HangOn(command string, p Plugin) Plugin {
	return on(command, p, func(ctx context.Context, _ Call) ([]byte, error) {
		<-ctx.Done()
		return nil, errKilled()
	})
}

// printing returns a fault: its plugin prints what as makes of its output.
func printing(as func(out []byte) []byte) func(Plugin) Plugin {
	return func(p Plugin) Plugin {
		return func(ctx context.Context, c Call) ([]byte, error) {
			out, err := p(ctx, c)
			if err != nil {
				return out, err
			}
			return as(out), nil
		}
	}
}

func silence([]byte) []byte { return nil }

func garbage([]byte) []byte { return []byte(`{"cniVersion":`) }

// twoDocuments returns out twice.
func twoDocuments(out []byte) []byte {
	out = append(bytes.TrimSpace(out), '\n')
	return slices.Concat(out, out)
}

// on returns p, except that do does command.
func on(command string, p, do Plugin) Plugin {
	return func(ctx context.Context, c Call) ([]byte, error) {
		if command == "" || c.Command == command {
			return do(ctx, c)
		}
		return p(ctx, c)
	}
}
