package delegatetest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

// checks are those of [Conform], in its order.
func checks() []check {
	return []check{
		{"version", checkVersion},
		{"add", checkAdd},
		{"stdout", checkStdout},
		{"result", checkResult},
		{"versions", checkVersions},
		{"request", checkRequest},
		{"environment", checkEnvironment},
		{"stderr", checkStderr},
		{"undo", undone(failing)},
		{"undo-killed", undone(func(p Plugin) Plugin { return KillOn("", p) })},
		{"undo-garbage", undone(func(p Plugin) Plugin { return GarbageOn("", p) })},
		{"undo-silence", undone(func(p Plugin) Plugin { return SilentOn("", p) })},
		{"undo-two-documents", undone(func(p Plugin) Plugin { return TwiceOn("", p) })},
		{"error", checkError},
		{"error-version", checkErrorVersion},
		{"code", checkCode},
		{"del", checkDel},
		{"del-again", checkDelAgain},
		{"del-unknown", checkDelUnknown},
		{"del-failed", checkDelFailed},
		{"del-bare", checkDelBare},
		{"del-error", failsWith("DEL")},
		{"del-retry", checkDelRetry},
		{"check", checkCheck},
		{"check-error", failsWith("CHECK")},
		{"gc", checkGC},
		{"gc-error", checkGCError},
		{"gc-valid", checkGCValid},
		{"status", checkStatus},
		{"status-error", failsWith("STATUS")},
		{"concurrent", checkConcurrent},
	}
}

func checkVersion(_ context.Context, s *suite) error {
	if err := s.supported.Err(); err != nil {
		return fmt.Errorf("VERSION fails: %w", err)
	}
	doc, err := s.supported.Document()
	if err != nil {
		return fmt.Errorf("VERSION: %w", err)
	}
	if len(s.versions) == 0 {
		return fmt.Errorf("VERSION prints %s: no version of CNI in that", doc)
	}
	return nil
}

func checkAdd(ctx context.Context, s *suite) error {
	b, _, err := s.attached(ctx)
	if err != nil {
		return err
	}
	return b.ran("ADD")
}

func checkStdout(ctx context.Context, s *suite) error {
	_, o, err := s.attached(ctx)
	if err == nil {
		_, err = o.Document()
	}
	return err
}

func checkResult(ctx context.Context, s *suite) error {
	b, o, err := s.attached(ctx)
	if err != nil {
		return err
	}
	return b.isResult(o)
}

// isResult fails unless o printed a result, in the version of b, with an
// address of a delegate.
func (b *bench) isResult(o Outcome) error {
	r, err := o.Result()
	if err != nil {
		return err
	}
	if r.Version() != b.version {
		return fmt.Errorf("the result is of version %q, the configuration of %q", r.Version(), b.version)
	}
	current, err := types100.NewResultFromResult(r)
	if err != nil {
		return err
	}
	for i := range b.suite.conf.Delegates {
		for _, ip := range current.IPs {
			if given := address(i); ip.Address.IP.Equal(given.IP) {
				return nil
			}
		}
	}
	first := address(0)
	return fmt.Errorf("the result %s has no address that a delegate gave, such as %v", o.Stdout, first.String())
}

func checkVersions(ctx context.Context, s *suite) error {
	var errs []error
	for _, v := range s.versions {
		b, err := s.bench(ctx)
		if err != nil {
			return err
		}
		b.version = v
		o := b.call(ctx, Call{Command: "ADD"})
		if err := b.isResult(o); err != nil {
			errs = append(errs, fmt.Errorf("ADD in version %s: %w", v, err))
			continue
		}
		if err := b.call(ctx, b.later("DEL", o)).Err(); err != nil {
			errs = append(errs, fmt.Errorf("DEL in version %s: %w", v, err))
			continue
		}
		errs = append(errs, b.empty("DEL in version "+v))
	}
	return errors.Join(errs...)
}

// undone checks that an ADD fails and leaves nothing when any of its delegates
// goes wrong.
func undone(wrong func(Plugin) Plugin) func(context.Context, *suite) error {
	return func(ctx context.Context, s *suite) error {
		n, err := s.count(ctx, "ADD")
		if err != nil {
			return err
		}
		var errs []error
		for k := 1; k <= n; k++ {
			b, err := s.bench(ctx)
			if err != nil {
				return err
			}
			b.fault("ADD", k, wrong)
			if b.call(ctx, Call{Command: "ADD"}).Status == 0 {
				errs = append(errs, fmt.Errorf("ADD succeeds though delegate %d of %d went wrong", k, n))
				continue
			}
			errs = append(errs, b.empty(fmt.Sprintf("an ADD whose delegate %d of %d went wrong", k, n)))
		}
		return errors.Join(errs...)
	}
}

// failsWith checks that command fails when any of its delegates does.
func failsWith(command string) func(context.Context, *suite) error {
	return func(ctx context.Context, s *suite) error {
		if err := s.needs(command); err != nil {
			return err
		}
		n, err := s.count(ctx, command)
		if err != nil {
			return err
		}
		var errs []error
		for k := 1; k <= n; k++ {
			b, o, err := s.attached(ctx)
			if err != nil {
				return err
			}
			b.fault(command, k, failing)
			if b.call(ctx, b.later(command, o)).Status == 0 {
				errs = append(errs, fmt.Errorf("%s succeeds though delegate %d of %d fails", command, k, n))
			}
		}
		return errors.Join(errs...)
	}
}

func checkConcurrent(ctx context.Context, s *suite) error {
	b, err := s.bench(ctx)
	if err != nil {
		return err
	}
	for _, command := range []string{"ADD", "DEL"} {
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			wg.Go(func() {
				id := fmt.Sprint("c", i+1)
				if err := b.call(ctx, Call{Command: command, ContainerID: id}).Err(); err != nil {
					errs[i] = fmt.Errorf("%s of %s beside others: %w", command, id, err)
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
	}
	return b.empty("a DEL of every container")
}
