package delegatetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"
)

func checkVersion(_ context.Context, s *suite) error {
	if err := s.supported.Err(); err != nil {
		return fmt.Errorf("VERSION fails: %w", err)
	}
	doc, err := s.supported.document()
	if err != nil {
		return fmt.Errorf("VERSION: %w", err)
	}
	if len(s.versions) == 0 {
		return fmt.Errorf("VERSION prints %s, which names no version of CNI", doc)
	}
	return nil
}

func checkAdd(_ context.Context, b *bench, _ Outcome) error { return b.ran("ADD") }

func checkStdout(_ context.Context, _ *bench, added Outcome) error {
	_, err := added.document()
	return err
}

func checkResult(_ context.Context, b *bench, added Outcome) error { return b.isResult(added) }

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
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.given) > 0 && !slices.ContainsFunc(current.IPs, func(ip *types100.IPConfig) bool {
		return slices.ContainsFunc(b.given, ip.Address.IP.Equal)
	}) {
		return fmt.Errorf("the result %s has no address that a delegate gave, of %v", o.Stdout, b.given)
	}
	return nil
}

func checkVersions(ctx context.Context, s *suite) error {
	if err := s.works(); err != nil {
		return err
	}
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
// goes wrong. With idle delegates it may succeed, unless all go wrong.
func undone(wrong func(command string, p Plugin) Plugin) func(context.Context, *suite) error {
	try := func(ctx context.Context, s *suite, k, n int) error {
		return onNew(func(ctx context.Context, b *bench, _ Outcome) error {
			what := which(k, n)
			b.fault("ADD", k, wrong)
			o := b.call(ctx, Call{Command: "ADD"})
			switch {
			case o.Status != 0:
				return b.empty("an ADD in which " + what + " went wrong")
			case k != every && s.fatal() == every:
				return b.recovered(ctx, o, what)
			}
			return fmt.Errorf("ADD succeeds though %s went wrong", what)
		})(ctx, s)
	}
	return onEach("ADD", func(ctx context.Context, s *suite, k, n int) error {
		err := try(ctx, s, k, n)
		if k == n && s.fatal() == every {
			err = errors.Join(err, try(ctx, s, every, n))
		}
		return err
	})
}

// recovered checks an ADD that succeeded although a delegate went wrong: another
// must have taken its place, and nothing of the first may be left.
func (b *bench) recovered(ctx context.Context, o Outcome, what string) error {
	if err := b.isResult(o); err != nil {
		return fmt.Errorf("ADD, in which %s went wrong: %w", what, err)
	}
	b.mu.Lock()
	wrong := slices.Clone(b.wrong)
	b.mu.Unlock()
	alive := make(map[string]bool) // attachments whose last ADD went wrong
	for i, c := range b.exec.Calls() {
		if c.Command == "ADD" {
			alive[c.attachment()] = slices.Contains(wrong, i)
		}
	}
	for _, a := range b.exec.Live() {
		if alive[a] {
			return fmt.Errorf("ADD succeeds, and leaves behind %q, which went wrong: delegates ran as %q", a, b.exec.Trace())
		}
	}
	return b.deleted(ctx, "the DEL after an ADD in which "+what+" went wrong", b.later("DEL", o))
}

// failsWith checks that command fails when any of its delegates does, and STATUS when all do
// that can take each other's place.
func failsWith(command string) func(context.Context, *suite) error {
	return onEach(command, func(ctx context.Context, s *suite, k, n int) error {
		if command == "STATUS" && s.fatal() == every {
			k = every
		}
		return onAttached(func(ctx context.Context, b *bench, added Outcome) error {
			b.fault(command, k, failing)
			if b.call(ctx, b.later(command, added)).Status == 0 {
				return fmt.Errorf("%s succeeds though %s fails", command, which(k, n))
			}
			return nil
		})(ctx, s)
	})
}

// which names the delegates that fault makes go wrong.
func which(k, n int) string {
	if k == every {
		return "every delegate"
	}
	return fmt.Sprintf("delegate %d of %d", k, n)
}

func checkConcurrent(ctx context.Context, b *bench, _ Outcome) error {
	if err := b.works(); err != nil {
		return err
	}
	for _, command := range []string{"ADD", "DEL"} {
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			wg.Go(func() {
				id := fmt.Sprint("c", i+1)
				if err := b.call(ctx, Call{Command: command, ContainerID: id}).Err(); err != nil {
					errs[i] = fmt.Errorf("%s of %s in parallel with others: %w", command, id, err)
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
