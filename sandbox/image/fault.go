//go:build linux

package image

import (
	"context"
	"errors"
	"net/http"
	"syscall"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"sandgate/sandbox"
)

// contentFault makes an error of the host's file system a fault of the layer, if
// that is the cause of it.
func contentFault(err error) error {
	for _, errno := range []error{
		syscall.ENAMETOOLONG, syscall.EINVAL, syscall.EMLINK, syscall.EEXIST, syscall.ENOENT,
		syscall.ENOTDIR, syscall.EISDIR, syscall.ELOOP, syscall.ENOTEMPTY, syscall.EILSEQ,
	} {
		if errors.Is(err, errno) {
			return &corruptError{err}
		}
	}
	return err
}

// fault says what is wrong with the image ref, if err is about that.
func fault(ref string, err error) error {
	is := func(targets ...error) bool {
		for _, t := range targets {
			if errors.Is(err, t) {
				return true
			}
		}
		return false
	}
	var kind sandbox.ImageFault
	_, isCorrupt := errors.AsType[*corruptError](err)
	_, isBadName := errors.AsType[*name.ErrBadName](err)
	talk, isTalk := errors.AsType[*registryError](err)
	switch {
	case is(context.Canceled, context.DeadlineExceeded) && !isTalk:
		return err
	case isBadName:
		kind = sandbox.ImageMalformed
	case is(errTooBig):
		kind = sandbox.ImageTooBig
	case is(errPlatform):
		kind = sandbox.ImagePlatform
	case is(syscall.ENOSPC, syscall.EDQUOT):
		kind = sandbox.ImageDiskFull
	case isCorrupt:
		kind = sandbox.ImageCorrupt
	case isTalk:
		kind = answerFault(talk.err)
	default:
		return err
	}
	return &sandbox.ImageError{Image: ref, Fault: kind, Err: err}
}

// answerFault says what a registry means.
func answerFault(err error) sandbox.ImageFault {
	answer, ok := errors.AsType[*transport.Error](err)
	if !ok {
		return sandbox.ImageUnreachable
	}
	for _, d := range answer.Errors {
		switch d.Code {
		case transport.UnauthorizedErrorCode, transport.DeniedErrorCode:
			return sandbox.ImageDenied
		case transport.NameUnknownErrorCode, transport.NameInvalidErrorCode, transport.ManifestUnknownErrorCode,
			transport.ManifestBlobUnknownErrorCode, transport.BlobUnknownErrorCode, transport.TagInvalidErrorCode:
			return sandbox.ImageNotFound
		case transport.TooManyRequestsErrorCode:
			return sandbox.ImageTooMany
		}
	}
	switch answer.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return sandbox.ImageDenied
	case http.StatusNotFound:
		return sandbox.ImageNotFound
	case http.StatusTooManyRequests:
		return sandbox.ImageTooMany
	}
	return sandbox.ImageUnreachable
}
