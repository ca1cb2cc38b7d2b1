/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Unpacks the packed fields of a record. */
#ifndef LONGSPLICE_RECORD_H
#define LONGSPLICE_RECORD_H

#include "abi.h"

/* Returns the scale of the window field that x sends. */
static __always_inline __u32 scale_in(const struct ls_record *rec)
{
	return rec->scales & 15;
}

/* Returns the scale that o applies to that field. */
static __always_inline __u32 scale_out(const struct ls_record *rec)
{
	return rec->scales >> 4;
}

/* Returns the place of the current record: enum ls_placement, without LS_ARMED. */
static __always_inline __u32 placement_of(const struct ls_record *rec)
{
	return *(const volatile __u8 *)&rec->placement & ~LS_ARMED;
}

static __always_inline int is_armed(const struct ls_record *rec)
{
	return rec->placement & LS_ARMED;
}

static __always_inline void add_bytes(struct ls_record *rec, __u32 bytes)
{
	__u32 sum = rec->bytes_low + bytes;

	rec->bytes_high += sum < bytes;
	rec->bytes_low = sum;
}

#endif
