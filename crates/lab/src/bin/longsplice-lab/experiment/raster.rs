//! Backend of plotters for PNG files whose font is part of the program: no font of the system is needed.

use std::convert::Infallible;

use noto_sans_mono_bitmap::{FontWeight, RasterHeight, get_raster, get_raster_width};
use plotters_backend::text_anchor::{HPos, VPos};
use plotters_backend::{
    BackendColor, BackendCoord, BackendStyle, BackendTextStyle, DrawingBackend, DrawingErrorKind,
};

/// Size of a text, in pixels, from which on the larger font is used.
const LARGE: f64 = 18.0;

/// Pixels of a picture.
#[derive(Debug)]
pub(crate) struct Raster {
    width: u32,
    height: u32,
    /// Red, green and blue of each pixel, line by line.
    pixels: Vec<u8>,
}

impl Raster {
    /// Creates a white picture.
    pub(crate) fn new((width, height): (u32, u32)) -> Raster {
        Raster {
            width,
            height,
            pixels: vec![255; width as usize * height as usize * 3],
        }
    }

    /// Returns it as a PNG file.
    pub(crate) fn encode(&self) -> Result<Vec<u8>, png::EncodingError> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let mut writer = encoder.write_header()?;
        writer.write_image_data(&self.pixels)?;
        writer.finish()?;
        Ok(file)
    }

    /// Mixes a colour into the pixel at a place; one outside of the picture is ignored.
    fn mix(&mut self, (x, y): BackendCoord, color: BackendColor, share: f64) {
        let inside = |at: i32, end: u32| u32::try_from(at).ok().filter(|at| *at < end);
        let (Some(x), Some(y)) = (inside(x, self.width), inside(y, self.height)) else {
            return;
        };
        let at = (y as usize * self.width as usize + x as usize) * 3;
        let alpha = (color.alpha * share).clamp(0.0, 1.0);
        let (red, green, blue) = color.rgb;
        for (pixel, new) in self.pixels[at..at + 3].iter_mut().zip([red, green, blue]) {
            *pixel = (f64::from(*pixel) * (1.0 - alpha) + f64::from(new) * alpha).round() as u8;
        }
    }
}

impl DrawingBackend for &mut Raster {
    type ErrorType = Infallible;

    fn get_size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    fn ensure_prepared(&mut self) -> Result<(), DrawingErrorKind<Infallible>> {
        Ok(())
    }

    fn present(&mut self) -> Result<(), DrawingErrorKind<Infallible>> {
        Ok(())
    }

    fn draw_pixel(
        &mut self,
        point: BackendCoord,
        color: BackendColor,
    ) -> Result<(), DrawingErrorKind<Infallible>> {
        self.mix(point, color, 1.0);
        Ok(())
    }

    /// Draws lines of any width pixel by pixel; the polygons of plotters' own paths have gaps at sharp corners.
    fn draw_path<S: BackendStyle, I: IntoIterator<Item = BackendCoord>>(
        &mut self,
        path: I,
        style: &S,
    ) -> Result<(), DrawingErrorKind<Infallible>> {
        let points: Vec<BackendCoord> = path.into_iter().collect();
        let width = i32::try_from(style.stroke_width()).unwrap_or(1).max(1);
        for pair in points.windows(2) {
            let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
            let is_flat = (x1 - x0).abs() >= (y1 - y0).abs();
            for n in 0..width {
                let by = n - width / 2;
                let (dx, dy) = if is_flat { (0, by) } else { (by, 0) };
                self.draw_line((x0 + dx, y0 + dy), (x1 + dx, y1 + dy), &style.color())?;
            }
        }
        Ok(())
    }

    fn draw_text<S: BackendTextStyle>(
        &mut self,
        text: &str,
        style: &S,
        at: BackendCoord,
    ) -> Result<(), DrawingErrorKind<Infallible>> {
        let height = height(style.size());
        let (width, tall) = size(text, height);
        let dx = match style.anchor().h_pos {
            HPos::Left => 0,
            HPos::Right => -width,
            HPos::Center => -width / 2,
        };
        let dy = match style.anchor().v_pos {
            VPos::Top => 0,
            VPos::Center => -tall / 2,
            VPos::Bottom => -tall,
        };
        let each = get_raster_width(FontWeight::Regular, height) as i32;
        for (n, character) in text.chars().enumerate() {
            let glyph = get_raster(character, FontWeight::Regular, height);
            let Some(glyph) = glyph.or_else(|| get_raster('?', FontWeight::Regular, height)) else {
                continue;
            };
            for (y, row) in glyph.rows().enumerate() {
                for (x, intensity) in row.iter().enumerate() {
                    let (x, y) = (n as i32 * each + x as i32 + dx, y as i32 + dy);
                    let (x, y) = style.transform().transform(x, y);
                    self.mix((at.0 + x, at.1 + y), style.color(), f64::from(*intensity) / 255.0);
                }
            }
        }
        Ok(())
    }

    fn estimate_text_size<S: BackendTextStyle>(
        &self,
        text: &str,
        style: &S,
    ) -> Result<(u32, u32), DrawingErrorKind<Infallible>> {
        let (width, height) = size(text, height(style.size()));
        Ok((width.unsigned_abs(), height.unsigned_abs()))
    }
}

fn height(size: f64) -> RasterHeight {
    if size < LARGE {
        RasterHeight::Size16
    } else {
        RasterHeight::Size20
    }
}

/// Returns width and height of a text, in pixels.
fn size(text: &str, height: RasterHeight) -> (i32, i32) {
    let each = get_raster_width(FontWeight::Regular, height);
    ((text.chars().count() * each) as i32, height.val() as i32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_mixed_and_stay_inside() {
        let mut raster = Raster::new((2, 1));
        let half_black = BackendColor {
            alpha: 0.5,
            rgb: (0, 0, 0),
        };
        raster.mix((1, 0), half_black, 1.0);
        for outside in [(-1, 0), (2, 0), (0, 1)] {
            raster.mix(outside, half_black, 1.0);
        }
        assert_eq!(raster.pixels, [255, 255, 255, 128, 128, 128]);
    }

    #[test]
    fn a_text_is_as_wide_as_its_characters() {
        let (one, tall) = size("a", RasterHeight::Size16);
        assert_eq!((size("abc", RasterHeight::Size16).0, tall), (3 * one, 16));
        assert_eq!(height(20.0).val(), 20);
    }
}
