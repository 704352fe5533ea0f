package conform

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/metacni/metacni/delegate/delegatetest"
	"github.com/metacni/metacni/internal/printed"
)

func checkVersion(_ context.Context, s *suite) error {
	if err := s.supported.Err(); err != nil {
		return fmt.Errorf("VERSION fails: %w", bounded(err))
	}
	doc, err := printed.Document(s.supported.Stdout)
	if err != nil {
		return fmt.Errorf("VERSION: %w", err)
	}
	if _, err := new(version.PluginDecoder).Decode(doc); err != nil {
		return fmt.Errorf("VERSION prints %s: %w", printed.Clip(doc), err)
	}
	if len(s.versions) == 0 {
		return fmt.Errorf("VERSION prints %s, which names no version of CNI", printed.Clip(doc))
	}
	return nil
}

func checkAdd(ctx context.Context, s *suite) error {
	if s.missing != "" {
		return &notRunError{s.missing}
	}
	if s.added != nil {
		return fmt.Errorf("ADD fails: %w", bounded(s.added))
	}
	return onAttached(func(_ context.Context, b *bench, _ outcome) error { return b.ran("ADD") })(ctx, s)
}

func checkStdout(_ context.Context, _ *bench, added outcome) error {
	_, err := printed.Document(added.Stdout)
	return err
}

func checkResult(_ context.Context, b *bench, added outcome) error { return b.isResult(added) }

// isResult fails unless o printed a result, in the version of b, with an address of a
// delegate. A plugin in a chain may keep that one to itself.
func (b *bench) isResult(o outcome) error {
	r, err := o.Result()
	if err != nil {
		return err
	}
	if !alike(r.Version(), b.version) {
		return fmt.Errorf("the result is of version %q, the configuration of %q", r.Version(), b.version)
	}
	current, err := types100.NewResultFromResult(r)
	if err != nil {
		return err
	}
	for i, ip := range current.IPs {
		if at := ip.Interface; at != nil && (*at < 0 || *at >= len(current.Interfaces)) {
			return fmt.Errorf("the interface of ips[%d] is %d, and the result has %d interfaces: it is %s", i, *at, len(current.Interfaces), printed.Clip(o.Stdout))
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.given) > 0 && !b.chained && !slices.ContainsFunc(current.IPs, func(ip *types100.IPConfig) bool {
		return slices.ContainsFunc(b.given, ip.Address.IP.Equal)
	}) {
		return fmt.Errorf("the result has no address that a delegate gave, of %v: it is %s", b.given, printed.Clip(o.Stdout))
	}
	return nil
}

// alike reports whether two versions are the same, or the first two, whose results are.
func alike(v, other string) bool {
	first := []string{"0.1.0", "0.2.0"}
	return v == other || slices.Contains(first, v) && slices.Contains(first, other)
}

func checkVersions(ctx context.Context, s *suite) error {
	var errs []error
	for _, v := range s.versions {
		if s.chained && !atLeast(v, "0.3.0") {
			continue // there are no chains
		}
		b, err := s.bench(ctx)
		if err != nil {
			return err
		}
		b.version = v
		o := b.call(ctx, delegatetest.Invocation{Command: "ADD"})
		if err := b.isResult(o); err != nil {
			errs = append(errs, fmt.Errorf("ADD in version %s: %w", v, err))
			continue
		}
		if err := b.call(ctx, b.later("DEL", o)).failure(); err != nil {
			errs = append(errs, fmt.Errorf("DEL in version %s: %w", v, err))
			continue
		}
		errs = append(errs, b.clean(ctx, "DEL in version "+v))
	}
	return one(errs...)
}

// undone checks that an ADD fails and leaves nothing when any of its delegates
// goes wrong. With idle delegates it may succeed, unless all go wrong.
func undone(wrong func(command string, p delegatetest.Fake) delegatetest.Fake) func(context.Context, *suite) error {
	try := func(ctx context.Context, s *suite, k, n int) error {
		return onNew(func(ctx context.Context, b *bench, _ outcome) error {
			what := which(k, n)
			b.fault("ADD", k, wrong)
			o := b.call(ctx, delegatetest.Invocation{Command: "ADD"})
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
			err = one(err, try(ctx, s, every, n))
		}
		return err
	})
}

// recovered checks an ADD that succeeded although a delegate went wrong: another
// must have taken its place, and nothing of the first may be left.
func (b *bench) recovered(ctx context.Context, o outcome, what string) error {
	if err := b.isResult(o); err != nil {
		return fmt.Errorf("ADD, in which %s went wrong: %w", what, err)
	}
	b.mu.Lock()
	wrong := slices.Clone(b.wrong)
	b.mu.Unlock()
	alive := make(map[string]bool) // attachments whose last ADD went wrong
	for i, c := range b.exec.Calls() {
		if c.Command == "ADD" {
			alive[attachment(c)] = slices.Contains(wrong, i)
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
		return onAttached(func(ctx context.Context, b *bench, added outcome) error {
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

// errSingle says that the plugin gives a container an interface of the host, which it has once.
var errSingle = notRun("one container at a time can have the interface of the host (Links)")

// atOnce is how many containers "concurrent" attaches.
const atOnce = 4

// scarce says that there is too little for several containers, also one after the other: addresses
// or interfaces. It returns nil when there is enough.
func (s *suite) scarce(ctx context.Context) error {
	if len(s.conf.Links) == 0 && s.kind.Name != kindIPAM {
		return nil
	}
	b, err := s.bench(ctx)
	if err != nil {
		return err
	}
	for i := range atOnce {
		if b.call(ctx, delegatetest.Invocation{Command: "ADD", ContainerID: fmt.Sprint("c", i+1)}).Status == 0 {
			continue
		}
		if s.kind.Name == kindIPAM {
			return notRun("the plugin has fewer than %d addresses to give (Stdin)", atOnce)
		}
		return errSingle
	}
	return nil
}

func checkConcurrent(ctx context.Context, b *bench, _ outcome) error {
	added := make([]outcome, atOnce)
	for _, command := range []string{"ADD", "DEL"} {
		var wg sync.WaitGroup
		errs := make([]error, len(added))
		for i := range added {
			wg.Go(func() {
				c := delegatetest.Invocation{Command: command}
				if command == "DEL" {
					c = b.later(command, added[i])
				}
				c.ContainerID = fmt.Sprint("c", i+1)
				o := b.call(ctx, c)
				if err := o.failure(); err != nil {
					errs[i] = fmt.Errorf("%s of %s in parallel with others: %w", command, c.ContainerID, err)
				}
				added[i] = o
			})
		}
		wg.Wait()
		if err := one(errs...); err != nil {
			if command == "ADD" {
				err = cmp.Or(b.scarce(ctx), err)
			}
			return err
		}
		if command == "ADD" {
			if err := b.distinct(ctx, added); err != nil {
				return err
			}
		}
	}
	return b.clean(ctx, "a DEL of every container")
}

// distinct fails if two containers have got the same address from the plugin itself, and do not
// get the same when they are attached one after the other.
func (b *bench) distinct(ctx context.Context, added []outcome) error {
	if b.chained || len(b.types()) > 0 {
		return nil
	}
	ip := shared(added)
	if ip == "" {
		return nil
	}
	other, first, err := b.attached(ctx)
	if err != nil {
		return err
	}
	if shared([]outcome{first, other.call(ctx, delegatetest.Invocation{Command: "ADD", ContainerID: "c2"})}) != "" {
		return nil // each container has the same, such as 127.0.0.1
	}
	return fmt.Errorf("of %d containers that are attached in parallel, two get %s", len(added), ip)
}

// shared returns an address that two of these ADDs printed, or nothing.
func shared(added []outcome) string {
	has := make(map[string]bool)
	for _, o := range added {
		all, _ := addresses(o) // an error is for the check "result"
		for _, ip := range all {
			if has[ip] {
				return ip
			}
			has[ip] = true
		}
	}
	return ""
}
