package delegatetest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
)

// errKilled is the error of a process that was killed.
func errKilled() error { return errors.New("signal: killed") }

// FailOn returns p, except that command fails with code and msg and does nothing. An
// attachment counts as alive all the same: a plugin that fails may have done a part.
// For this and the other faults, an empty command means every command.
func FailOn(command string, code uint, msg string, p Fake) Fake {
	return on(command, p, func(context.Context, Invocation) ([]byte, error) {
		return nil, types.NewError(code, msg, "")
	})
}

// KillOn returns p, except that it is killed after it has done command and before
// it prints anything.
func KillOn(command string, p Fake) Fake {
	return after(command, p, func([]byte) ([]byte, error) { return nil, errKilled() })
}

// HangOn returns p, except that command does nothing until the context ends. The
// error is that of a killed process.
func HangOn(command string, p Fake) Fake {
	return on(command, p, func(ctx context.Context, _ Invocation) ([]byte, error) {
		<-ctx.Done()
		return nil, errKilled()
	})
}

// SlowOn returns p, except that it waits for d before command. If the context
// ends first, p does nothing, and the error is that of a killed process. In a
// bubble of testing/synctest the wait takes no time.
func SlowOn(command string, d time.Duration, p Fake) Fake {
	return on(command, p, func(ctx context.Context, c Invocation) ([]byte, error) {
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

// NoiseOn returns p, except that command prints noise before its output.
func NoiseOn(command, noise string, p Fake) Fake {
	return on(command, p, func(ctx context.Context, c Invocation) ([]byte, error) {
		out, err := p(ctx, c)
		return slices.Concat([]byte(noise), out), err
	})
}

// GarbageOn returns p, except that command prints the start of a JSON document
// instead of its output.
func GarbageOn(command string, p Fake) Fake {
	return after(command, p, func([]byte) ([]byte, error) { return []byte(`{"cniVersion":`), nil })
}

// after returns p, except that end replaces the output of command when that
// succeeds.
func after(command string, p Fake, end func(out []byte) ([]byte, error)) Fake {
	return on(command, p, func(ctx context.Context, c Invocation) ([]byte, error) {
		out, err := p(ctx, c)
		if err != nil {
			return out, err
		}
		return end(out)
	})
}

// on returns p, except that do does command.
func on(command string, p, do Fake) Fake {
	return func(ctx context.Context, c Invocation) ([]byte, error) {
		if command == "" || c.Command == command {
			return do(ctx, c)
		}
		return p(ctx, c)
	}
}
