//go:build !linux

package adopt

import "errors"

func addressesIn(string, string) (addresses, error) { return addresses{}, errors.ErrUnsupported }
